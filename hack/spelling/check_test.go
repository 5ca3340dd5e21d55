package main

import (
	"slices"
	"strings"
	"testing"
)

func TestWordsAreTakenOutOfNames(t *testing.T) {
	for text, want := range map[string]string{
		"A GPUNodeGroup's maxDevices, MicaGPUNotSeen": "A GPU Node Group max Devices, Mica GPU Not Seen",
		"GPUs, UUIDs and ANDed requirements":          "GPUs, UUIDs and ANDed requirements",
		"an H100 with 80Gi, p5.48xlarge and k8s.io":   "an   with  , and",
		"see https://example.com/teh, pkg/teh, teh.":  "see    , teh.",
		"its driver’s libraries":                      "its driver libraries",
	} {
		if got := words(text); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("the words of %q are %q, want %q", text, got, want)
		}
	}
}

func TestTemplatesAreLeftOutOfTheirLines(t *testing.T) {
	if got, want := withoutTemplates("a\n{{ if\nteh }}b\n"), "a\n\nb\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCheckSaysWhereAndWhat(t *testing.T) {
	texts := []page{{file: "one.md", text: "a kubelet\nand teh GPUs"}, {file: "two.md", text: "teh"}}
	for _, test := range []struct {
		name             string
		unknown, project []string
		want             []string
	}{
		{"words of the project", []string{"GPUs", "Kubelet", "NAMESPACE", "Gi"}, []string{"GPUs", "kubelet", "namespace"}, nil},
		{"a misspelled word", []string{"teh"}, nil, []string{"one.md:2: \"teh\"", "two.md:1: \"teh\""}},
		{"a word that nobody uses", nil, []string{"vgpu"}, []string{"no page needs \"vgpu\""}},
		{"an unsorted list", []string{"GPUs", "kubelet"}, []string{"kubelet", "GPUs"}, []string{"not sorted"}},
	} {
		got := check(texts, test.unknown, test.project)
		if !slices.EqualFunc(got, test.want, strings.Contains) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
