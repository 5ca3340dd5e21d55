package workload

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// barrier is a change of one kind of object that shows in a count, because nothing else
// changes that: all earlier changes of the kind have been counted when it shows.
type barrier struct {
	*world
	counts <-chan int
	// with counts one more than without.
	with, without func()
	is            bool
}

func (b *barrier) pass() {
	b.is = !b.is
	if b.is {
		b.with()
		b.await(b.counts, 1)
	} else {
		b.without()
		b.await(b.counts, 0)
	}
}

// settle waits until all changes have been counted.
func (h *history) settle() {
	for i := range h.barriers {
		h.barriers[i].pass()
	}
}

// barrierObjects are pods that wait once their barrier is passed, each by itself.
func barrierObjects() []client.Object {
	return []client.Object{
		newPod("barrier-claim", "", namesClaim("g", "barrier")),
		newPod("barrier-template", "", namesTemplate("g", "barrier")),
		newPod("barrier-set", "barrier", namesTemplate("g", "none")),
	}
}

func newBarriers(w *world) []barrier {
	var (
		pod      = newPod("barrier", "", requests("deviceclass.resource.kubernetes.io/barrier-pod"))
		claim    = newClaim("barrier", "barrier-claim")
		template = newTemplate("barrier", "barrier-template")
		set      = newReplicaSet("barrier", "barrier")
	)
	on := func(of Pending, object client.Object) barrier {
		return barrier{world: w, counts: w.watch(of), with: func() { w.add(object) }, without: func() { w.remove(object) }}
	}
	return []barrier{
		on(ofClass("barrier-pod"), pod),
		on(ofClass("barrier-claim"), claim),
		on(ofClass("barrier-template"), template),
		on(ofWorkload(KindDeployment, "barrier"), set),
	}
}
