"""Report of a run as one HTML file: tables, and plots if matplotlib is installed."""
