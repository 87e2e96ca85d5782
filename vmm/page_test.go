//go:build !bigpages

package vmm_test

// page is the granularity of these tests: small, so that chunks are cheap. With
// -tags bigpages it is a GPU's.
const page = 4096
