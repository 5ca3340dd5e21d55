package keda

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/mica-gpu/mica/pkg/scaleout"
)

// patience is how long a question waits for a plan.
const patience = 10 * time.Second

// errUnplannable is in the error of a replica that no plan will ever have, as one with a constraint
// that the planner does not know.
var errUnplannable = errors.New("nothing can be planned with it")

func (s *Sources) supply(ctx context.Context, replica scaleout.Replica) (scaleout.Supply, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	supply, err := s.Forecast.Supply(ctx, replica)
	if err != nil {
		return scaleout.Supply{}, unavailable(err)
	}
	if supply.Problem != "" {
		return scaleout.Supply{}, failure{fmt.Errorf("%w: %s", errUnplannable, supply.Problem), codes.FailedPrecondition}
	}
	return supply, nil
}
