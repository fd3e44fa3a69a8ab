"""TODO-objectives"""
