package control

import (
	"context"

	"k8s.io/klog/v2"
)

// errorLog logs each error once, until it is gone for a pass.
type errorLog map[string]bool

func (e *errorLog) log(ctx context.Context, err error, message string) {
	current := errorLog{}
	for _, one := range split(err) {
		text := one.Error()
		if current[text] = true; !(*e)[text] && ctx.Err() == nil {
			klog.FromContext(ctx).Error(one, message)
		}
	}
	*e = current
}

// split returns the errors that errors.Join has joined.
func split(err error) []error {
	if err == nil {
		return nil
	}
	joined, is := err.(interface{ Unwrap() []error }) // not errors.As: a wrapped join has a message of its own
	if !is {
		return []error{err}
	}
	var parts []error
	for _, part := range joined.Unwrap() {
		parts = append(parts, split(part)...)
	}
	return parts
}
