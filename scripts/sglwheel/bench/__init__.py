"""What the build is measured by: ratios from one run, with medians and spread."""
