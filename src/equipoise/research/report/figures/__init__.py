"""Figures: drawn as SVG from results, coloured by the page's style sheet."""
