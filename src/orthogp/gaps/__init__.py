"""Missing rows: covariates of gaps, and hyperparameters that fill them."""
