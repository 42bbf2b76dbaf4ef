"""Results of a run as tables (Markdown, LaTeX) beside the paper's, and as one HTML page with figures."""
