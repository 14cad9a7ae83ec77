// SPDX-License-Identifier: Apache-2.0
// An empty Python module: importing it runs the library's operator registrations.
#pragma once

#include <Python.h>

#define SAMPLE_PYTHON_MODULE(name)                                                     \
  PyMODINIT_FUNC PyInit_##name() {                                                     \
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, #name, nullptr, 0, nullptr}; \
    return PyModule_Create(&definition);                                               \
  }
