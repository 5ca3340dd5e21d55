package cdi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

func TestBatchHooks(t *testing.T) {
	const ours, other = "/plugins/nvidia-cdi-hook", "/usr/bin/other"
	hook := func(name, path string, args ...string) *cdispec.Hook {
		return &cdispec.Hook{HookName: name, Path: path, Args: append([]string{"nvidia-cdi-hook"}, args...)}
	}
	timeout := 5
	impatient := hook("createContainer", ours, "e")
	impatient.Timeout = &timeout
	tests := map[string]struct{ hooks, want []*cdispec.Hook }{
		"nothing": {},
		"one hook stays as it is": {
			hooks: []*cdispec.Hook{hook("createContainer", ours, "a", "--x", "1")},
			want:  []*cdispec.Hook{hook("createContainer", ours, "a", "--x", "1")},
		},
		"hooks of one kind become one, in order": {
			hooks: []*cdispec.Hook{
				hook("createContainer", ours, "a", "--x", `quoted " and space`),
				hook("createContainer", ours, "b"),
				hook("createContainer", ours, "c"),
			},
			want: []*cdispec.Hook{
				hook("createContainer", ours, "batch", `["a","--x","quoted \" and space"]`, `["b"]`, `["c"]`),
			},
		},
		"other kinds, programs and time limits stay apart": {
			hooks: []*cdispec.Hook{
				hook("createContainer", ours, "a"), hook("createRuntime", ours, "b"),
				hook("createContainer", other, "c"), hook("createContainer", other, "d"),
				impatient, hook("createContainer", ours, "f"),
			},
			want: []*cdispec.Hook{
				hook("createContainer", ours, "batch", `["a"]`, `["f"]`), hook("createRuntime", ours, "b"),
				hook("createContainer", other, "c"), hook("createContainer", other, "d"), impatient,
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := batchHooks(test.hooks, ours)
			must(t, err)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("hooks differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBatchHooksRefusesHookWithoutSubcommand(t *testing.T) {
	bare := &cdispec.Hook{HookName: "createContainer", Path: "/hook", Args: []string{"hook"}}
	if _, err := batchHooks([]*cdispec.Hook{bare, bare}, "/hook"); err == nil {
		t.Error("got no error for a hook without a subcommand")
	}
}
