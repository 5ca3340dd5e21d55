package view

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// Memo caches results of pure functions from one Read to the next, so that a thousand nodes are compared with their
// templates once. It drops what a Read does not use. It is not safe for concurrent use.
type Memo struct {
	predictions table[predictionKey, prediction]
	decoded     table[[sha256.Size]byte, *template.Template]
	learned     table[learnKey, *template.Template]
	comparisons table[compareKey, comparison]
	// nominations has the time at which each was first seen.
	nominations table[nomination, time.Time]
	// selectors drops expressions if there are too many.
	selectors *devices.Selectors
}

// NewMemo returns an empty Memo.
func NewMemo() *Memo { return &Memo{selectors: devices.NewSelectors()} }

// endRead drops what the Read has not used.
func (m *Memo) endRead() {
	m.predictions.dropUnread()
	m.decoded.dropUnread()
	m.learned.dropUnread()
	m.comparisons.dropUnread()
	m.nominations.dropUnread()
}

type predictionKey struct{ group, instanceType, policies string }

type prediction struct {
	template *template.Template
	err      error
}

type learnKey struct {
	node, policies string
	before         *template.Template
}

// compareKey has a pointer to the template: Memo caches templates, so equal ones are the same.
type compareKey struct {
	template *template.Template
	node     string
}

type comparison struct {
	missing    []string
	difference string
}

func (c comparison) same() bool { return len(c.missing) == 0 && c.difference == "" }

// table has the results that this Read and the last one have used.
type table[K comparable, V any] struct{ now, last map[K]V }

func (t *table[K, V]) get(key K, make func() V) V {
	if value, found := t.now[key]; found {
		return value
	}
	value, found := t.last[key]
	if !found {
		value = make()
	}
	t.put(key, value)
	return value
}

func (t *table[K, V]) put(key K, value V) {
	if t.now == nil {
		t.now = map[K]V{}
	}
	t.now[key] = value
}

func (t *table[K, V]) dropUnread() { t.now, t.last = nil, t.now }

// versionOf changes with the object.
func versionOf(o client.Object) string {
	return o.GetName() + "/" + string(o.GetUID()) + "/" + o.GetResourceVersion()
}

// versionOfSpec changes with the spec of the group, not with its status.
func versionOfSpec(group *v1alpha1.GPUNodeGroup) string {
	return fmt.Sprintf("%s/%s/%d", group.Name, group.UID, group.Generation)
}

func versionsOf[T client.Object](objects []T) string {
	var key strings.Builder
	for _, o := range objects {
		key.WriteString(versionOf(o))
		key.WriteByte(',')
	}
	return key.String()
}
