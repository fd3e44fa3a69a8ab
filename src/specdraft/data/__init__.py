"""TODO-data"""
