// Package conformance owns the suite that says what the simulated NVML promises
// to a client. It is written against go-nvml's interface alone, so that the same
// tests run on the model in process and on the C library with the daemon behind
// it. It never looks into an implementation.
package conformance
