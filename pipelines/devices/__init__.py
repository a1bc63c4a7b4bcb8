"""Devices other than the CPU: a model on an NPU, and GPUs, where OpenVINO GenAI decodes."""
