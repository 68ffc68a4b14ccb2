"""Folds the ranges of a unit into a budget of spans, with exact sums of the rest."""
