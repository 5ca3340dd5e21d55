package main

import (
	"os/exec"
	"strings"
	"testing"
)

// compilers build what is only good for a cluster, or takes long.
var compilers = []string{"./cmd/kubelet-plugin", "./cmd/nvidia-cdi-hook", "-shared", "./test/nvmlsim/cmd/nvml-sim", "lint.sh", "go test"}

func TestTheMachineIsCheckedBeforeAnythingIsBuilt(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	for _, target := range []string{"demo", "cluster-up", "test", "test-e2e", "bench"} {
		t.Run(target, func(t *testing.T) {
			plan, err := exec.Command("make", "-C", "../..", "--dry-run", "--always-make", target).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, plan)
			}
			before, after, found := strings.Cut(string(plan), "bin/cluster check")
			if !found {
				t.Fatalf("it never checks:\n%s", plan)
			}
			for _, compiler := range compilers {
				if strings.Contains(before, compiler) {
					t.Errorf("%s comes before the check", compiler)
				}
			}
			if !strings.Contains(after, compilers[0]) {
				t.Errorf("%s is not built:\n%s", compilers[0], plan)
			}
		})
	}
}
