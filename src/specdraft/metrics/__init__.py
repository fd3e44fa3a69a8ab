"""TODO-metrics"""
