package prepare

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/wake"
)

// ledger keeps the records of claims: in the journal, with a copy in the claim's CDI file.
// It restores a lost record from the copy. Without the copy, a partition whose record is
// lost would pass for an administrator's: never destroyed, and given to a second claim.
type ledger struct {
	store  *journal.Journal
	copies *cdi.Directory
	bootID string
	// damaged holds a token when a record was found unusable.
	damaged wake.Signal
}

// recorded returns the record of a claim, whose lock the caller holds. It is empty if there
// is neither a record nor a copy.
func (l ledger) recorded(ctx context.Context, claim types.UID) (journal.Record, error) {
	record, found, loss := l.store.Get(string(claim))
	var corrupt *journal.Corrupt
	if found || loss != nil && !errors.As(loss, &corrupt) || corrupt != nil && corrupt.Newer {
		return record, loss
	}
	record, found, err := l.copied(claim)
	switch {
	case err != nil:
		return journal.Record{}, err
	case !found && loss != nil:
		l.damaged.Wake()
		klog.FromContext(ctx).Error(loss, "Removing the unusable record of a claim", "uid", claim)
		return journal.Record{}, recordRemoved.corrected(l.store.Delete(string(claim)))
	case found:
		klog.FromContext(ctx).Error(loss, "Restoring the lost record of a claim from its CDI file", "claim", klog.KRef(record.Namespace, record.Name), "uid", claim)
		if err := recordRestored.corrected(l.store.Put(ctx, record)); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot restore the record of a claim; using the copy in its CDI file", "uid", claim)
		}
	}
	return record, nil
}

// listing is all records.
type listing struct {
	// records include those that only their copies have.
	records []journal.Record
	// newer are records of a newer version. Their claims keep what they hold.
	newer []*journal.Corrupt
	// damaged are the claims whose record is damaged.
	damaged []types.UID
}

// list reports each file that cannot be used once.
func (l ledger) list(ctx context.Context) (listing, error) {
	// Copies before the journal: a lost record is restored before its copy goes.
	copies, err := l.copies.Claims()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return listing{}, err
	}
	var found listing
	records, corrupt, err := l.store.List()
	if err != nil {
		return listing{}, err
	}
	found.records = records
	for _, bad := range corrupt {
		switch {
		case bad.Newer:
			if !bad.Known {
				klog.FromContext(ctx).Error(bad, "Skipping a claim that a newer plugin version recorded")
			}
			found.newer = append(found.newer, bad)
			continue
		case !bad.Known:
			l.damaged.Wake()
			klog.FromContext(ctx).Error(bad, "The record of a claim is unusable; restoring it from its CDI file, or preparing the claim again")
		}
		if bad.ClaimUID != "" {
			found.damaged = append(found.damaged, types.UID(bad.ClaimUID))
		}
	}
	for _, claim := range copies {
		if slices.ContainsFunc(records, func(r journal.Record) bool { return r.ClaimUID == string(claim) }) {
			continue
		}
		lost, exists, err := l.copied(claim)
		if err == nil && !exists { // it may have been restored since
			lost, exists, err = l.store.Get(string(claim))
		}
		if err != nil && !errors.As(err, new(*journal.Corrupt)) {
			return listing{}, named("", "", claim, err)
		}
		if exists {
			found.records = append(found.records, lost)
		}
	}
	return found, nil
}

// Prepared lists the claims that are prepared on this node.
func (l ledger) Prepared(ctx context.Context) ([]journal.Record, error) {
	found, err := l.list(ctx)
	return slices.DeleteFunc(found.records, func(r journal.Record) bool { return !l.current(r) }), err
}

// copied reads the copy of a claim's record. One that is damaged or of another boot counts
// as none.
func (l ledger) copied(claim types.UID) (record journal.Record, found bool, err error) {
	spec, err := l.copies.Read(claim)
	if err != nil {
		return journal.Record{}, false, err
	}
	record, err = journal.Decode(string(claim), []byte(spec.Record))
	if err != nil || !l.current(record) {
		return journal.Record{}, false, nil
	}
	return record, true, nil
}

// current reports whether a record is of a claim that is prepared in this boot.
func (l ledger) current(record journal.Record) bool {
	return record.State == journal.Prepared && record.BootID == l.bootID
}

func nameOf(record journal.Record) types.NamespacedName {
	return types.NamespacedName{Namespace: record.Namespace, Name: record.Name}
}
