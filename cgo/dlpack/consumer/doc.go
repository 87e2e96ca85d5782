// Package consumer is a C library for tests that takes tensors by DLPack, and makes some.
package consumer
