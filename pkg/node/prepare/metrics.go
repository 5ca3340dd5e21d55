package prepare

import "k8s.io/component-base/metrics"

var correctionsTotal = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "mica_reconcile_corrections_total",
	Help:           "What was put right that a crash, a restart of the node, or a damaged or removed file had left behind, by what was done.",
	StabilityLevel: metrics.ALPHA,
}, []string{"correction"})

// correction is something that Reconcile repairs.
type correction string

const (
	// recordRestored: a lost record was restored from its claim's CDI file. recordRemoved: a
	// damaged one that has no copy was removed.
	recordRestored correction = "record-restored"
	recordRemoved  correction = "record-removed"
	// preparationUndone: a preparation had been cut short. claimForgotten: a claim was prepared
	// before the node's last start. claimReleased: a claim is gone.
	preparationUndone correction = "preparation-undone"
	claimForgotten    correction = "claim-forgotten"
	claimReleased     correction = "claim-released"
	// claimPrepared: a claim whose record was lost with its copy was prepared anew.
	claimPrepared correction = "claim-prepared"
	// specRestored: a CDI file had vanished. specReplaced: it was another driver's.
	// specWithdrawn: an administrator had destroyed its partition. specRemoved: it had no claim.
	specRestored  correction = "cdi-restored"
	specReplaced  correction = "cdi-replaced"
	specWithdrawn correction = "cdi-withdrawn"
	specRemoved   correction = "cdi-removed"
)

var corrections = []correction{
	recordRestored, recordRemoved, preparationUndone, claimForgotten, claimReleased, claimPrepared, specRestored, specReplaced, specWithdrawn, specRemoved,
}

// corrected counts the correction if it was made.
func (c correction) corrected(err error) error {
	if err == nil {
		correctionsTotal.WithLabelValues(string(c)).Inc()
	}
	return err
}

// RegisterMetrics is called once by a process that serves metrics.
func RegisterMetrics(register func(...metrics.Registerable)) {
	register(correctionsTotal)
	// Series exist from the start, so that a rate over the first one is seen.
	for _, c := range corrections {
		correctionsTotal.WithLabelValues(string(c))
	}
}
