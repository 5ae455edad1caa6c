"""Labels as a weighted regression, in passes over the rows."""
