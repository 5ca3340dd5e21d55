package keda

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// failure is an error with its gRPC code. KEDA shows the message. It acts on the code Unimplemented
// only, after which it never asks again, so this package never returns that. Other codes serve metrics
// and other clients.
type failure struct {
	error
	code codes.Code
}

func (f failure) Unwrap() error { return f.error }

// GRPCStatus lets gRPC find the code, also of a wrapped failure.
func (f failure) GRPCStatus() *status.Status { return status.New(f.code, f.Error()) }

// invalid is an error in the user's trigger.
func invalid(err error) error { return failure{err, codes.InvalidArgument} }

// unavailable is the error of a source without a reliable answer.
func unavailable(err error) error { return failure{err, codes.Unavailable} }

// onTheWire adds a gRPC code to an error that has none.
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
