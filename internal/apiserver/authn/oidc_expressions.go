package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	celgo "github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	authenticationv1 "k8s.io/api/authentication/v1"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/lazy"
)

// evaluation evaluates the CEL expressions of a JWT authenticator against the claims of one token.
type evaluation struct {
	mapper *authenticationcel.CELMapper
	claims *lazy.MapValue
}

func newEvaluation(mapper *authenticationcel.CELMapper, c providerClaims) *evaluation {
	e := &evaluation{mapper: mapper, claims: lazy.NewMapValue(celtypes.NewObjectType("kubernetes.claims"))}
	for name, raw := range c {
		e.claims.Append(name, func(*lazy.MapValue) ref.Val {
			var value any
			if err := json.Unmarshal(raw, &value); err != nil {
				return celtypes.NewErr("claim %q failed to unmarshal: %w", name, err)
			}
			return toValue(value)
		})
	}
	return e
}

// evaluateString evaluates an expression that must return a string.
func (e *evaluation) evaluateString(ctx context.Context, m authenticationcel.ClaimsMapper, field string) (string, error) {
	result, err := m.EvalClaimMapping(ctx, e.claims)
	if err != nil {
		return "", fmt.Errorf("oidc: error evaluating %s claim expression: %w", field, err)
	}
	text, ok := result.EvalResult.Value().(string)
	if !ok || result.EvalResult.Type() != celgo.StringType {
		return "", fmt.Errorf("oidc: error evaluating %s claim expression: %s claim expression must return a string", field, field)
	}
	return text, nil
}

// evaluateStrings evaluates an expression that must return a string, a list of strings, or null.
func (e *evaluation) evaluateStrings(ctx context.Context, m authenticationcel.ClaimsMapper, field string) ([]string, error) {
	result, err := m.EvalClaimMapping(ctx, e.claims)
	if err != nil {
		return nil, fmt.Errorf("oidc: error evaluating %s claim expression: %w", field, err)
	}
	texts, err := toStrings(result.EvalResult)
	if err != nil {
		return nil, fmt.Errorf("oidc: error evaluating %s claim expression: %w", field, err)
	}
	return texts, nil
}

func (e *evaluation) extra(ctx context.Context, m authenticationcel.ClaimsMapper, into map[string]authenticationv1.ExtraValue) error {
	results, err := m.EvalClaimMappings(ctx, e.claims)
	if err != nil {
		return err
	}
	for _, result := range results {
		mapping, ok := result.ExpressionAccessor.(*authenticationcel.ExtraMappingExpression)
		if !ok {
			return fmt.Errorf("oidc: error evaluating extra claim expression: unexpected %T", result.ExpressionAccessor)
		}
		values, err := toStrings(result.EvalResult)
		if err != nil {
			return fmt.Errorf("oidc: error evaluating extra claim expression: %s: %w", mapping.Expression, err)
		}
		if len(values) > 0 {
			into[mapping.Key] = values
		}
	}
	return nil
}

// checkRules evaluates the claim validation rules, then the user validation rules.
func (e *evaluation) checkRules(ctx context.Context, user *User) error {
	if e.mapper.ClaimValidationRules != nil {
		results, err := e.mapper.ClaimValidationRules.EvalClaimMappings(ctx, e.claims)
		if err == nil {
			err = allTrue(results)
		}
		if err != nil {
			return fmt.Errorf("oidc: error evaluating claim validation expression: %w", err)
		}
	}
	if e.mapper.UserValidationRules != nil {
		results, err := e.mapper.UserValidationRules.EvalUser(ctx, userValue(user))
		if err == nil {
			err = allTrue(results)
		}
		if err != nil {
			return fmt.Errorf("oidc: error evaluating user info validation rule: %w", err)
		}
	}
	return nil
}

func allTrue(results []authenticationcel.EvaluationResult) error {
	for _, result := range results {
		passed, ok := result.EvalResult.Value().(bool)
		if !ok {
			return errors.New("validation expression must return a boolean")
		}
		if passed {
			continue
		}
		message := ""
		switch rule := result.ExpressionAccessor.(type) {
		case *authenticationcel.ClaimValidationCondition:
			message = rule.Message
		case *authenticationcel.UserValidationCondition:
			message = rule.Message
		}
		return fmt.Errorf("validation expression '%s' failed: %s", result.ExpressionAccessor.GetExpression(), message)
	}
	return nil
}

// toStrings converts a string, a list of strings or null. Empty strings are dropped.
func toStrings(value ref.Val) ([]string, error) {
	notStrings := errors.New("expression must return a string or a list of strings")
	switch v := value.(type) {
	case celtypes.Null:
		return nil, nil
	case celtypes.String:
		if v == "" {
			return nil, nil
		}
		return []string{string(v)}, nil
	case traits.Lister:
		var texts []string
		for it := v.Iterator(); it.HasNext() == celtypes.True; {
			text, ok := it.Next().(celtypes.String)
			if !ok {
				return nil, notStrings
			}
			if text != "" {
				texts = append(texts, string(text))
			}
		}
		return texts, nil
	}
	return nil, notStrings
}

// userValue is the CEL variable user.
func userValue(u *User) *lazy.MapValue {
	value := lazy.NewMapValue(celtypes.NewObjectType("kubernetes.UserInfo"))
	extra := make(map[string][]string, len(u.Extra))
	for key, values := range u.Extra {
		extra[key] = values
	}
	for name, field := range map[string]any{"username": u.Username, "uid": u.UID, "groups": u.Groups, "extra": extra} {
		value.Append(name, func(*lazy.MapValue) ref.Val { return toValue(field) })
	}
	return value
}

// toValue converts to a CEL value whose maps can also be indexed by escaped names: claims.a__dot__b is the claim "a.b".
func toValue(v any) ref.Val { return unescaping(celtypes.DefaultTypeAdapter.NativeToValue(v)) }

func unescaping(value ref.Val) ref.Val {
	switch v := value.(type) {
	case traits.Mapper:
		return unescapingMap{v}
	case traits.Lister:
		return unescapingList{v}
	}
	return value
}

type unescapingMap struct{ traits.Mapper }

// Find implements traits.Mapper.
func (m unescapingMap) Find(key ref.Val) (ref.Val, bool) {
	if name, ok := key.(celtypes.String); ok {
		if plain, ok := cel.Unescape(string(name)); ok {
			key = celtypes.String(plain)
		}
	}
	value, ok := m.Mapper.Find(key)
	return unescaping(value), ok
}

type unescapingList struct{ traits.Lister }

// Get implements traits.Indexer.
func (l unescapingList) Get(index ref.Val) ref.Val { return unescaping(l.Lister.Get(index)) }
