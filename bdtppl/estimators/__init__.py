"""Estimators in scikit-learn's shape, one module for each inference."""
