//go:build crds

// Package crds owns the versions of other projects whose kinds the examples use: `make crds` copies
// their CustomResourceDefinitions from their modules, and the API server of the end-to-end tests then
// checks the examples by them. Nothing is ever built from it. This is a module of its own, so
// that nothing of it enters Mica's.
package crds

import (
	_ "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	_ "sigs.k8s.io/gateway-api/apis/v1"
	_ "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	_ "sigs.k8s.io/lws/api/leaderworkerset/v1"
)
