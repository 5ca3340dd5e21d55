package keda

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/mica-gpu/mica/pkg/scaleout"
)

// patience is how long a request waits for a plan.
const patience = 10 * time.Second

// errUnplannable marks replicas that no plan can include, such as those with a constraint unknown to
// the planner.
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
