package cdi

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// batchCommand is the subcommand of cmd/nvidia-cdi-hook that runs several hooks.
const batchCommand = "batch"

// batchHooks lets one process run all hooks of a kind that nvcdi lists one by
// one: starting processes is most of what a GPU adds to a container's start.
// Hooks keep their order. Hooks of other programs are left alone.
func batchHooks(hooks []*cdispec.Hook, path string) ([]*cdispec.Hook, error) {
	var batched []*cdispec.Hook
	for _, hook := range hooks {
		into := slices.IndexFunc(batched, func(other *cdispec.Hook) bool { return sameProcess(other, hook) })
		if hook.Path != path || into < 0 {
			batched = append(batched, hook)
			continue
		}
		merged, err := mergeHooks(batched[into], hook)
		if err != nil {
			return nil, err
		}
		batched[into] = merged
	}
	return batched, nil
}

// sameProcess reports whether two hooks can run in one process.
func sameProcess(a, b *cdispec.Hook) bool {
	return a.HookName == b.HookName && a.Path == b.Path && slices.Equal(a.Env, b.Env) && a.Timeout == nil && b.Timeout == nil
}

// mergeHooks appends the second hook to the first, which may be a batch.
func mergeHooks(first, second *cdispec.Hook) (*cdispec.Hook, error) {
	arguments := first.Args
	if len(arguments) < 2 || arguments[1] != batchCommand {
		encoded, err := encodeHook(first)
		if err != nil {
			return nil, err
		}
		arguments = []string{filepath.Base(first.Path), batchCommand, encoded}
	}
	encoded, err := encodeHook(second)
	if err != nil {
		return nil, err
	}
	merged := *first
	merged.Args = append(slices.Clone(arguments), encoded)
	return &merged, nil
}

// encodeHook writes the arguments without the program's name as batch wants them.
func encodeHook(hook *cdispec.Hook) (string, error) {
	if len(hook.Args) < 2 {
		return "", fmt.Errorf("hook %s has no subcommand among its arguments %q", hook.Path, hook.Args)
	}
	encoded, err := json.Marshal(hook.Args[1:])
	return string(encoded), err
}
