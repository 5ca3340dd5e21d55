// Package keda owns the test that KEDA's own external scalers, as its operator has them, get from
// our server what it answers. The server is test/kedaserver, a process of its own. This is a
// module of its own, so that what KEDA requires never enters the controller's.
package keda
