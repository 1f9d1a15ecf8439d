// Package match decides which writes a webhook or policy of admissionregistration.k8s.io is for: by its rules, by the labels of the
// namespace and by those of the object.
//
// Compile prepares the criteria of one webhook or policy. An Index finds those whose rules can match a write, so that a write that none is
// for costs one lookup.
package match

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/admission"
	"skiff/internal/kind"
)

// Criteria say which writes a webhook or policy is for.
type Criteria struct {
	Rules   []admissionregistrationv1.NamedRuleWithOperations
	Exclude []admissionregistrationv1.NamedRuleWithOperations
	// AllWithoutRules: no rules match every write.
	AllWithoutRules                   bool
	NamespaceSelector, ObjectSelector *metav1.LabelSelector
	MatchPolicy                       *admissionregistrationv1.MatchPolicyType
}

// Rules are rules without names of objects.
func Rules(rules []admissionregistrationv1.RuleWithOperations) []admissionregistrationv1.NamedRuleWithOperations {
	named := make([]admissionregistrationv1.NamedRuleWithOperations, len(rules))
	for i := range rules {
		named[i].RuleWithOperations = rules[i]
	}
	return named
}

// IsConfiguration reports whether the write is to a webhook configuration, or to a policy or its binding. Webhooks and policies of the API
// are not for those, or a wrong one could not be removed.
func IsConfiguration(a *admission.Attributes) bool {
	if a.Kind.Group != admissionregistrationv1.GroupName {
		return false
	}
	switch a.Kind.Kind {
	case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding":
		return true
	}
	return false
}

// IsReview reports whether the write is a review of a token or of access. No webhook is for those: it could lock everyone out.
func IsReview(a *admission.Attributes) bool {
	return a.Resource.Group == "authentication.k8s.io" || a.Resource.Group == "authorization.k8s.io"
}

// Matcher is the compiled form of Criteria.
type Matcher struct {
	rules, exclude      []admissionregistrationv1.NamedRuleWithOperations
	allWithoutRules     bool
	equivalent          bool
	namespaces, objects labels.Selector
	// invalid is why a selector could not be compiled. Validation prevents it for new objects.
	invalid error
}

// Compile compiles criteria.
func Compile(c Criteria) *Matcher {
	m := &Matcher{
		rules: c.Rules, exclude: c.Exclude, allWithoutRules: c.AllWithoutRules,
		equivalent: ptr.Deref(c.MatchPolicy, admissionregistrationv1.Exact) == admissionregistrationv1.Equivalent,
	}
	m.namespaces = m.selector(c.NamespaceSelector)
	m.objects = m.selector(c.ObjectSelector)
	return m
}

// selector compiles a selector; none matches everything.
func (m *Matcher) selector(s *metav1.LabelSelector) labels.Selector {
	if s == nil {
		return labels.Everything()
	}
	compiled, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		m.invalid = err
		return labels.Everything()
	}
	return compiled
}

// Request is a write with what its matchers need to know, which is read at most once.
type Request struct {
	*admission.Attributes
	client      kind.Client
	equivalents []admission.Equivalent
	namespace   *namespaceLabels
}

type namespaceLabels struct {
	labels labels.Set
	err    error
}

// NewRequest prepares a write for matchers. client reads its namespace.
func NewRequest(a *admission.Attributes, client kind.Client) *Request {
	return &Request{Attributes: a, client: client}
}

// Match reports whether the webhook or policy is for the write, and in which version it wants the object: that of the request, or with
// matchPolicy Equivalent that of a rule for another version or group of the same objects.
func (m *Matcher) Match(ctx context.Context, r *Request) (as admission.Equivalent, ok bool, err error) {
	if len(m.rules) == 0 && m.allWithoutRules {
		as, ok = admission.Equivalent{Resource: r.Resource, Kind: r.Kind}, true
	} else {
		as, ok = m.matchRules(m.rules, r)
	}
	if !ok {
		return as, false, nil
	}
	if _, excluded := m.matchRules(m.exclude, r); excluded || !m.matchesObject(r) {
		return as, false, nil
	}
	if m.invalid != nil {
		return as, false, apierrors.NewInternalError(m.invalid)
	}
	ok, err = m.matchesNamespace(ctx, r)
	return as, ok, err
}

// matchesObject: it is enough that the object had matching labels before the write.
func (m *Matcher) matchesObject(r *Request) bool {
	return m.objects.Empty() || hasLabels(r.Object, m.objects) || hasLabels(r.Old, m.objects)
}

func hasLabels(obj runtime.Object, selector labels.Selector) bool {
	if obj == nil {
		return false
	}
	accessor, err := meta.Accessor(obj)
	return err == nil && selector.Matches(labels.Set(accessor.GetLabels()))
}

const namespaces = "namespaces"

// matchesNamespace: the selector does not exclude objects without namespace, except namespaces themselves.
func (m *Matcher) matchesNamespace(ctx context.Context, r *Request) (bool, error) {
	if m.namespaces.Empty() || r.Namespace == "" && r.Resource.Resource != namespaces {
		return true, nil
	}
	found, err := r.NamespaceLabels(ctx)
	if err != nil {
		return false, err
	}
	return m.namespaces.Matches(found), nil
}

// NamespaceLabels are the labels of the write's namespace; for a namespace that is created or updated, the new ones.
func (r *Request) NamespaceLabels(ctx context.Context) (labels.Set, error) {
	if r.Resource.Resource == namespaces && r.Subresource == "" && (r.Operation == admission.Create || r.Operation == admission.Update) {
		accessor, err := meta.Accessor(r.Object)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		return accessor.GetLabels(), nil
	}
	if r.namespace == nil {
		r.namespace = &namespaceLabels{}
		obj, err := r.client.Get(ctx, schema.GroupResource{Resource: namespaces}, "", r.Attributes.Namespace)
		switch {
		case apierrors.IsNotFound(err):
			r.namespace.err = err
		case err != nil:
			r.namespace.err = apierrors.NewInternalError(err)
		default:
			r.namespace.labels = obj.GetLabels()
		}
	}
	return r.namespace.labels, r.namespace.err
}

// matchRules finds the first rule that matches the request's own resource, or else one that matches an equivalent resource.
func (m *Matcher) matchRules(rules []admissionregistrationv1.NamedRuleWithOperations, r *Request) (admission.Equivalent, bool) {
	for i := range rules {
		if matchesRule(&rules[i], r.Attributes, r.Resource) {
			return admission.Equivalent{Resource: r.Resource, Kind: r.Kind}, true
		}
	}
	if !m.equivalent || r.Versions == nil {
		return admission.Equivalent{}, false
	}
	if r.equivalents == nil {
		r.equivalents = r.Versions.Equivalents()
	}
	for i := range rules {
		for _, other := range r.equivalents {
			if other.Resource != r.Resource && matchesRule(&rules[i], r.Attributes, other.Resource) {
				return other, true
			}
		}
	}
	return admission.Equivalent{}, false
}

func matchesRule(rule *admissionregistrationv1.NamedRuleWithOperations, a *admission.Attributes, resource schema.GroupVersionResource) bool {
	return matchesOperation(rule.Operations, a.Operation) &&
		matchesText(rule.APIGroups, resource.Group) && matchesText(rule.APIVersions, resource.Version) &&
		matchesResource(rule.Resources, resource.Resource, a.Subresource) && matchesScope(rule.Scope, a, resource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.Name))
}

func matchesOperation(operations []admissionregistrationv1.OperationType, operation admission.Operation) bool {
	for _, o := range operations {
		if o == admissionregistrationv1.OperationAll || string(o) == string(operation) {
			return true
		}
	}
	return false
}

func matchesText(allowed []string, text string) bool {
	return slices.Contains(allowed, "*") || slices.Contains(allowed, text)
}

// matchesResource: "pods" is the resource alone, "pods/*" also has its subresources, "*" is all resources, "*/*" all with subresources.
func matchesResource(allowed []string, resource, subresource string) bool {
	for _, text := range allowed {
		name, sub, _ := strings.Cut(text, "/")
		if (name == "*" || name == resource) && (sub == "*" || sub == subresource) {
			return true
		}
	}
	return false
}

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: namespaces}

// matchesScope: the namespace of a request for a namespace is that namespace, but namespaces are not namespaced.
func matchesScope(scope *admissionregistrationv1.ScopeType, a *admission.Attributes, resource schema.GroupVersionResource) bool {
	namespaced := resource != namespaceResource && a.Namespace != ""
	switch ptr.Deref(scope, admissionregistrationv1.AllScopes) {
	case admissionregistrationv1.AllScopes:
		return true
	case admissionregistrationv1.NamespacedScope:
		return namespaced
	case admissionregistrationv1.ClusterScope:
		return !namespaced
	}
	return false
}
