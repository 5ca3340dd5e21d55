// Package floors owns the test that keeps the project's imports pointing down:
// a package may import those on lower floors only, and only the packages at the
// hardware boundary may import go-nvml. It is a test and nothing else; no code
// depends on it.
package floors
