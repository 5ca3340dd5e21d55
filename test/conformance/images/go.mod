// What the conformance tests run in pods of a cluster without a registry: a shell, and the image that Kubernetes'
// own tests of the HorizontalPodAutoscaler have. It has a module of its own so that their requirements never reach the
// product's.
module github.com/mica-gpu/mica/test/conformance/images

go 1.26.0

tool (
	k8s.io/kubernetes/test/images/resource-consumer
	mvdan.cc/sh/v3/cmd/gosh
)

require (
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/term v0.45.0 // indirect
	k8s.io/kubernetes v1.37.1 // indirect
	mvdan.cc/sh/v3 v3.14.1 // indirect
)
