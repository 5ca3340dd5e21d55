package doctor

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/test/fixture"
)

// sick has several mistakes at once.
func sick() *Facts {
	f := healthy()
	for _, name := range []string{"an accelerator label", "containerd 1.7", "a sick GPU"} {
		traps[name].set(f)
	}
	for i := range 5 {
		f.TaintRules = append(f.TaintRules, taintRule(fmt.Sprintf("rule-%d", i), &resourceapi.DeviceTaintSelector{}, resourceapi.DeviceTaintEffectNoSchedule))
	}
	f.Unseen[KindPods], f.Unseen[KindGates] = "you may not read them", "you may not read them"
	return f
}

func TestReportsForPeople(t *testing.T) {
	for name, tc := range map[string]struct {
		facts  *Facts
		screen terminal.Screen
	}{
		"healthy": {healthy(), terminal.Screen{}},
		"sick":    {sick(), terminal.Screen{}},
		"narrow":  {sick(), terminal.Screen{Width: 40}},
		"colour":  {sick(), terminal.Screen{Width: 100, Colour: true}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := Write(&out, tc.screen, Examine(tc.facts)); err != nil {
				t.Fatal(err)
			}
			fixture.Golden(t, name+".txt", out.String())
		})
	}
}

func TestReportsForPrograms(t *testing.T) {
	var out strings.Builder
	if err := terminal.JSON.Encode(&out, Examine(sick())); err != nil {
		t.Fatal(err)
	}
	fixture.Golden(t, "sick.json", out.String())
}

// AddPod drops pods that no check reads.
func TestPodsAreReduced(t *testing.T) {
	f := &Facts{}
	ended := pluginPod("gpu-1", true)
	ended.Status.Phase = corev1.PodSucceeded
	f.AddPod(ended)
	f.AddPod(&corev1.Pod{})
	privileged := true
	f.AddPod(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Env: []corev1.EnvVar{{Name: envVisibleDevices, Value: "all"}}, SecurityContext: &corev1.SecurityContext{Privileged: &privileged},
	}}}})
	if len(f.Pods) != 0 {
		t.Errorf("kept %+v", f.Pods)
	}
}
