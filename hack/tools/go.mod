// Tools that the workshop needs and the product does not. They have a module of
// their own so that their requirements never reach the product's.
module github.com/mica-gpu/mica/hack/tools

go 1.26.0

tool sigs.k8s.io/logtools/logcheck

require (
	golang.org/x/exp v0.0.0-20240506185415-9bf2ced13842 // indirect
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/tools v0.52.0 // indirect
	sigs.k8s.io/logtools v0.10.1 // indirect
)
