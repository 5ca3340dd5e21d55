package offer

import (
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// mirror has the objects of one kind as the API server has them. It is what a
// cache.Reflector writes into, without an informer's queue and second copy.
type mirror[T metav1.Object] struct {
	// keep is what is remembered of an object.
	keep func(T) T
	// changed is called after every change, with the zero value for an object that
	// was not there or is not any more.
	changed func(before, after T)

	mu      sync.Mutex
	objects map[string]T
}

var _ cache.ReflectorStore = &mirror[*metav1.ObjectMeta]{}

// list tells, too, whether the API server has answered at all.
func (m *mirror[T]) list() (objects []T, answered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, object := range m.objects {
		objects = append(objects, object)
	}
	return objects, m.objects != nil
}

// Add implements cache.ReflectorStore.
func (m *mirror[T]) Add(object any) error { return m.Update(object) }

// Update implements cache.ReflectorStore.
func (m *mirror[T]) Update(object any) error {
	typed, ok := object.(T)
	if !ok {
		return fmt.Errorf("the API server sent a %T", object)
	}
	typed = m.keep(typed)
	m.mu.Lock()
	if m.objects == nil {
		m.objects = map[string]T{}
	}
	before := m.objects[typed.GetName()]
	m.objects[typed.GetName()] = typed
	m.mu.Unlock()
	m.changed(before, typed)
	return nil
}

// Delete implements cache.ReflectorStore.
func (m *mirror[T]) Delete(object any) error {
	typed, ok := object.(T)
	if !ok {
		return fmt.Errorf("the API server sent a %T", object)
	}
	m.mu.Lock()
	before := m.objects[typed.GetName()]
	delete(m.objects, typed.GetName())
	m.mu.Unlock()
	var none T
	m.changed(before, none)
	return nil
}

// Replace implements cache.ReflectorStore.
func (m *mirror[T]) Replace(list []any, _ string) error {
	objects := make(map[string]T, len(list))
	for _, object := range list {
		typed, ok := object.(T)
		if !ok {
			return fmt.Errorf("the API server sent a %T", object)
		}
		objects[typed.GetName()] = m.keep(typed)
	}
	m.mu.Lock()
	m.objects = objects
	m.mu.Unlock()
	var none T
	m.changed(none, none)
	return nil
}

// Resync implements cache.ReflectorStore.
func (m *mirror[T]) Resync() error { return nil }
