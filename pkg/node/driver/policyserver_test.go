package driver

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// policyServer is the part of an API server that has GPUPolicies, and refuses
// writes that start from an old one.
type policyServer struct {
	mu          sync.Mutex
	policies    map[string]*v1alpha1.GPUPolicy
	version     int
	watchers    []*watch.RaceFreeFakeWatcher
	fail        error // of every list and watch
	writes      int
	beforeWrite func()
}

func newPolicyServer() *policyServer {
	return &policyServer{policies: map[string]*v1alpha1.GPUPolicy{}}
}

// IsWatchListSemanticsUnSupported tells client-go's reflector to list first.
func (s *policyServer) IsWatchListSemanticsUnSupported() bool { return true }

func (s *policyServer) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1alpha1.GPUPolicy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	policy, found := s.policies[name]
	if !found {
		return nil, apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource(v1alpha1.PolicyResource).GroupResource(), name)
	}
	return policy.DeepCopy(), nil
}

func (s *policyServer) List(context.Context, metav1.ListOptions) (*v1alpha1.GPUPolicyList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return nil, s.fail
	}
	list := &v1alpha1.GPUPolicyList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	for _, name := range slices.Sorted(maps.Keys(s.policies)) {
		list.Items = append(list.Items, *s.policies[name].DeepCopy())
	}
	return list, nil
}

func (s *policyServer) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return nil, s.fail
	}
	watcher := watch.NewRaceFreeFake()
	s.watchers = append(s.watchers, watcher)
	return watcher, nil
}

func (s *policyServer) UpdateStatus(_ context.Context, policy *v1alpha1.GPUPolicy, _ metav1.UpdateOptions) (*v1alpha1.GPUPolicy, error) {
	if s.beforeWrite != nil {
		s.beforeWrite()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	now, found := s.policies[policy.Name]
	resource := v1alpha1.GroupVersion.WithResource(v1alpha1.PolicyResource).GroupResource()
	if !found {
		return nil, apierrors.NewNotFound(resource, policy.Name)
	}
	if now.ResourceVersion != policy.ResourceVersion {
		return nil, apierrors.NewConflict(resource, policy.Name, nil)
	}
	updated := now.DeepCopy()
	updated.Status = policy.Status
	s.store(updated)
	return updated.DeepCopy(), nil
}

// refuse makes every list and watch fail, or none.
func (s *policyServer) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// store needs the lock.
func (s *policyServer) store(policy *v1alpha1.GPUPolicy) {
	s.version++
	policy.ResourceVersion = strconv.Itoa(s.version)
	s.policies[policy.Name] = policy
	for _, watcher := range s.watchers {
		watcher.Modify(policy.DeepCopy())
	}
}

// put creates a policy, or changes its specification.
func (s *policyServer) put(t testing.TB, name, spec string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	policy := &v1alpha1.GPUPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	if before, found := s.policies[name]; found {
		policy = before.DeepCopy()
		policy.Spec = v1alpha1.GPUPolicySpec{}
	}
	policy.Generation++
	if err := yaml.UnmarshalStrict([]byte(spec), &policy.Spec); err != nil {
		t.Fatal(err)
	}
	s.store(policy)
}

func (s *policyServer) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	policy := s.policies[name]
	delete(s.policies, name)
	for _, watcher := range s.watchers {
		watcher.Delete(policy)
	}
}

func (s *policyServer) status(name string) v1alpha1.GPUPolicyStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.policies[name].Status.DeepCopy()
}
