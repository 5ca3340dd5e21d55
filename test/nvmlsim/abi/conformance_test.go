package abi_test

import (
	"testing"

	"github.com/mica-gpu/mica/test/nvmlsim/conformance"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

func TestConformance(t *testing.T) {
	for _, name := range nodes.Names() {
		t.Run(name, func(t *testing.T) {
			node, err := nodes.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			d := start(t, name).use()
			conformance.Run(t, library, node, d.control())
		})
	}
}
