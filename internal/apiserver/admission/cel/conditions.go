package cel

import (
	"context"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// Conditions are the compiled matchConditions of a webhook or a policy. They are safe for concurrent use.
type Conditions struct {
	owner       Owner
	metrics     *Metrics
	expressions []*Expression
}

// Owner is the object that has the conditions, for metrics.
type Owner struct {
	Name string
	Kind string // webhook or policy
	Type string // admit or validate
}

// CompileConditions compiles match conditions. params says that the policy has a paramKind. metrics can be nil.
func CompileConditions(conditions []admissionregistrationv1.MatchCondition, params bool, owner Owner, metrics *Metrics) *Conditions {
	c := &Conditions{owner: owner, metrics: metrics}
	var compiler Compiler
	for i := range conditions {
		c.expressions = append(c.expressions, compiler.Compile(conditions[i].Expression, Scope{Params: params, Authorizer: true}, celgo.BoolType))
	}
	return c
}

// Match reports whether all conditions are true. A condition that is false decides; otherwise an error of one is returned, and the
// failure policy decides. The zero Conditions match everything.
func (c *Conditions) Match(ctx context.Context, version *Version, params *Params) (bool, error) {
	if c == nil || len(c.expressions) == 0 {
		return true, nil
	}
	began := time.Now()
	failed := 0
	matches, err := c.match(ctx, version, params, &failed)
	if c.metrics != nil {
		c.metrics.observe(c.owner, string(version.request.attributes.Operation), time.Since(began), failed, !matches && err == nil)
	}
	return matches, err
}

func (c *Conditions) match(ctx context.Context, version *Version, params *Params, failed *int) (bool, error) {
	evaluation := &Evaluation{
		Version: version, Resource: version.request.attributes.Resource, Params: params,
		Budget: celconfig.RuntimeCELCostBudgetMatchConditions, WithoutNamespace: true,
	}
	var errs []error
	for _, x := range c.expressions {
		result, err := evaluation.Evaluate(ctx, x)
		switch {
		case err != nil:
			return false, err
		case result.Err != nil:
			*failed++
			errs = append(errs, result.Err)
		case result.Value != types.True:
			return false, nil
		}
	}
	return len(errs) == 0, utilerrors.NewAggregate(errs)
}
