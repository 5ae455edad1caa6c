"""Predictions on grids and over regions; maps in and out."""
