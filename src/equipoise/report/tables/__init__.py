"""Tables: the paper's and ours, as Markdown and LaTeX."""
