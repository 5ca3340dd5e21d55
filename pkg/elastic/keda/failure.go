package keda

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// failure is an error with the code that it has on the wire. KEDA shows the words. The only
// code that it acts on is Unimplemented, after which it never asks again: none of ours is that. The codes are for
// the metric and for other clients.
type failure struct {
	error
	code codes.Code
}

func (f failure) Unwrap() error { return f.error }

// GRPCStatus is how gRPC finds the code, also where the failure is wrapped.
func (f failure) GRPCStatus() *status.Status { return status.New(f.code, f.Error()) }

// invalid is an error in what the user wrote.
func invalid(err error) error { return failure{err, codes.InvalidArgument} }

// unavailable is an error of a source that did not answer, or not with anything to rely on.
func unavailable(err error) error { return failure{err, codes.Unavailable} }

// onTheWire gives an error its code. What nobody gave one is Unknown.
func onTheWire(err error) error {
	if err == nil {
		return nil
	}
	if _, has := status.FromError(err); has {
		return err
	}
	code := codes.Unknown
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, workload.ErrNotFound), apierrors.IsNotFound(err):
		code = codes.NotFound
	}
	return status.Error(code, err.Error())
}
