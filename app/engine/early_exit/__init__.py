"""Let rows leave a pass early: predictors, the rows dropped, and when that pays."""
