"""Each row given its nearest: the engine for rough functions and for many columns."""
