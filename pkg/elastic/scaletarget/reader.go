package scaletarget

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrNotFound is returned for an object that does not exist.
var ErrNotFound = errors.New("does not exist")

// Cluster is a client without a cache: no role may list objects of all kinds.
type Cluster interface {
	Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error
	SubResource(name string) client.SubResourceClient
	RESTMapper() meta.RESTMapper
}

const (
	// fresh is how long an answer or error is reused: a ScaledObject has several triggers, each with two
	// requests in 15 s.
	fresh = 10 * time.Second
	// stale is how long the last target is used while the API server does not answer; an error would make
	// KEDA use its fallback.
	stale = time.Minute
	// most bounds remembered targets.
	most = 4096
	// patience bounds the API requests for one target.
	patience = 5 * time.Second
)

// Reader reads targets. It is safe for concurrent use.
type Reader struct {
	cluster Cluster
	// remedy says how to grant the right to read a resource.
	remedy  func(resource schema.GroupResource) string
	asking  singleflight.Group
	answers *cache.LRUExpireCache
	clock   clock.PassiveClock
}

// NewReader reads nothing yet. remedy says how to grant the right to read a resource.
func NewReader(cluster Cluster, clock clock.PassiveClock, remedy func(resource schema.GroupResource) string) *Reader {
	return &Reader{cluster: cluster, remedy: remedy, clock: clock, answers: cache.NewLRUExpireCacheWithClock(most, clock)}
}

// errUnanswered is the error while the API server does not answer.
var errUnanswered = errors.New("no answer")

// answer is a remembered target or error.
type answer struct {
	target *Target
	err    error
	// read is when the API server returned the target.
	read time.Time
	// until is when it is read again. The target is kept longer, for objects that have not changed.
	until time.Time
}

// keep is how long a target is remembered after its last request.
const keep = 10 * time.Minute

// Read returns an object, at most some seconds old, or at most a minute while the API server does not
// answer. It returns ErrNotFound if the object does not exist.
func (r *Reader) Read(ctx context.Context, name Name) (*Target, error) {
	now := r.clock.Now()
	known, _ := r.answers.Get(name)
	last, _ := known.(answer)
	if now.Before(last.until) {
		return last.target, last.err
	}
	answered := r.asking.DoChan(name.Namespace+"/"+name.String(), func() (any, error) {
		// The first caller may leave while others wait.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		target, err := r.ask(ctx, name, last.target)
		a := answer{target, err, now, now.Add(fresh)}
		if errors.Is(err, errUnanswered) && last.target != nil && now.Sub(last.read) <= stale {
			a.target, a.err, a.read = last.target, nil, last.read
		}
		r.answers.Add(name, a, keep)
		return a, nil
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case result := <-answered:
		a := result.Val.(answer)
		return a.target, a.err
	}
}

// ask reads the scale, and the object if it has changed.
func (r *Reader) ask(ctx context.Context, name Name, last *Target) (*Target, error) {
	mapping, err := Kind(r.cluster.RESTMapper(), name.Kind, name.Group)
	if err != nil {
		return nil, err
	}
	object, scale := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	object.SetNamespace(name.Namespace)
	object.SetName(name.Name)
	scale.SetGroupVersionKind(schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"})
	unscaled := r.cluster.SubResource("scale").Get(ctx, object, scale)
	if unscaled != nil && !apierrors.IsNotFound(unscaled) {
		return nil, r.explain(name, mapping.Resource.GroupResource(), "/scale", unscaled)
	}
	if unscaled == nil && last != nil && last.UID == scale.GetUID() && last.version == scale.GetResourceVersion() {
		return last, nil
	}
	if err := r.cluster.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return nil, r.explain(name, mapping.Resource.GroupResource(), "", err)
	}
	if unscaled != nil {
		// The API server returns the same error for a missing object and a missing subresource.
		return nil, fmt.Errorf("%s has no scale subresource: name the workload that it manages, or use a kind that has one", name)
	}
	target, err := read(object, scale)
	if err != nil {
		return nil, fmt.Errorf("%s in namespace %q cannot be scaled: %w", name, name.Namespace, err)
	}
	return target, nil
}

func (r *Reader) explain(name Name, resource schema.GroupResource, sub string, err error) error {
	resource.Resource += sub
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s %w in namespace %q: create it, or name one that is there", name, ErrNotFound, name.Namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s may not be read (%s): %s", name, resource, r.remedy(resource))
	}
	return fmt.Errorf("read %s of %s in namespace %q: %w: %w", resource, name, name.Namespace, errUnanswered, err)
}
