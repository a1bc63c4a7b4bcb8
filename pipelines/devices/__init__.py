"""Devices other than the CPU, where OpenVINO GenAI decodes."""
