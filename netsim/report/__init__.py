"""A run as one HTML file: tables, and plots where matplotlib is there."""
