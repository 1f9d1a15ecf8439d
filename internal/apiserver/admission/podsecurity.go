package admission

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"skiff/internal/container"
	"skiff/internal/kind"
)

// podSecurity enforces the Pod Security Standards as configured by the labels of a namespace: it rejects pods that violate the
// enforced level, and warns of pods and pod templates that violate the warn level. The checks are upstream's library; its
// admission code is not used because it needs informers and a client.
type podSecurity struct {
	client    lazyClient
	config    podSecurityConfig
	evaluator policy.Evaluator
}

// podSecurityConfig is a PodSecurityConfiguration.
type podSecurityConfig struct {
	metav1.TypeMeta `json:",inline"`
	Defaults        struct {
		Enforce        string `json:"enforce,omitempty"`
		EnforceVersion string `json:"enforce-version,omitempty"`
		Audit          string `json:"audit,omitempty"`
		AuditVersion   string `json:"audit-version,omitempty"`
		Warn           string `json:"warn,omitempty"`
		WarnVersion    string `json:"warn-version,omitempty"`
	} `json:"defaults"`
	Exemptions struct {
		Usernames      []string `json:"usernames,omitempty"`
		Namespaces     []string `json:"namespaces,omitempty"`
		RuntimeClasses []string `json:"runtimeClasses,omitempty"`
	} `json:"exemptions"`

	policy psapi.Policy
}

// complete sets the defaults and validates the configuration.
func (c *podSecurityConfig) complete() error {
	var errs field.ErrorList
	d := &c.Defaults
	for _, mode := range []struct {
		path           string
		level, version *string
		into           *psapi.LevelVersion
	}{
		{"enforce", &d.Enforce, &d.EnforceVersion, &c.policy.Enforce},
		{"audit", &d.Audit, &d.AuditVersion, &c.policy.Audit},
		{"warn", &d.Warn, &d.WarnVersion, &c.policy.Warn},
	} {
		if *mode.level == "" {
			*mode.level = string(psapi.LevelPrivileged)
		}
		if *mode.version == "" {
			*mode.version = psapi.VersionLatest
		}
		var err error
		if mode.into.Level, err = psapi.ParseLevel(*mode.level); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("defaults", mode.path), *mode.level, err.Error()))
		}
		if mode.into.Version, err = psapi.ParseVersion(*mode.version); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("defaults", mode.path+"-version"), *mode.version, err.Error()))
		}
	}
	nonEmpty := func(name string, _ bool) []string {
		if name == "" {
			return []string{"username must not be empty"}
		}
		return nil
	}
	exempt := field.NewPath("exemptions")
	errs = append(errs, validateExemptions(exempt.Child("namespaces"), c.Exemptions.Namespaces, apivalidation.ValidateNamespaceName)...)
	errs = append(errs, validateExemptions(exempt.Child("runtimeClasses"), c.Exemptions.RuntimeClasses, apivalidation.NameIsDNSSubdomain)...)
	errs = append(errs, validateExemptions(exempt.Child("usernames"), c.Exemptions.Usernames, nonEmpty)...)
	return errs.ToAggregate()
}

func validateExemptions(path *field.Path, names []string, validate func(string, bool) []string) (errs field.ErrorList) {
	for i, name := range names {
		if problems := validate(name, false); len(problems) > 0 {
			errs = append(errs, field.Invalid(path.Index(i), name, strings.Join(problems, ", ")))
		} else if slices.Contains(names[:i], name) {
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
	}
	return errs
}

func newPodSecurity(client lazyClient, config podSecurityConfig) (*podSecurity, error) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, err
	}
	return &podSecurity{client: client, config: config, evaluator: evaluator}, nil
}

func (*podSecurity) Name() string { return "PodSecurity" }

// Handles ignores the subresources of pods that cannot change their security. Unknown subresources are handled.
func (*podSecurity) Handles(a *Attributes) bool {
	if !a.changes() {
		return false
	}
	if a.is(pods) {
		switch a.Subresource {
		case "exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status":
			return false
		}
		return true
	}
	return a.Subresource == "" && (a.is(namespaces) || hasTemplate(a.Resource.GroupResource()))
}

// hasTemplate reports whether objects of the resource have a pod template.
func hasTemplate(resource schema.GroupResource) bool {
	switch resource.Group {
	case "":
		return resource.Resource == "replicationcontrollers" || resource.Resource == "podtemplates"
	case appsv1.GroupName:
		switch resource.Resource {
		case "replicasets", "deployments", "statefulsets", "daemonsets":
			return true
		}
	case batchv1.GroupName:
		return resource.Resource == "jobs" || resource.Resource == "cronjobs"
	}
	return false
}

// template returns the metadata and spec of an object's pod template; nil if it has none.
func template(obj runtime.Object) (*metav1.ObjectMeta, *corev1.PodSpec, error) {
	var t *corev1.PodTemplateSpec
	switch obj := obj.(type) {
	case *corev1.PodTemplate:
		t = &obj.Template
	case *corev1.ReplicationController:
		t = obj.Spec.Template
	case *appsv1.ReplicaSet:
		t = &obj.Spec.Template
	case *appsv1.Deployment:
		t = &obj.Spec.Template
	case *appsv1.DaemonSet:
		t = &obj.Spec.Template
	case *appsv1.StatefulSet:
		t = &obj.Spec.Template
	case *batchv1.Job:
		t = &obj.Spec.Template
	case *batchv1.CronJob:
		t = &obj.Spec.JobTemplate.Spec.Template
	default:
		return nil, nil, fmt.Errorf("unexpected object type: %T", obj)
	}
	if t == nil {
		return nil, nil, nil
	}
	return &t.ObjectMeta, &t.Spec, nil
}

func (p *podSecurity) Validate(ctx context.Context, a *Attributes) error {
	switch {
	case a.is(namespaces):
		return p.validateNamespace(ctx, a)
	case a.is(pods):
		return p.validatePod(ctx, a)
	}
	return p.validatePodController(ctx, a)
}

// annotatePodSecurity adds an audit annotation of this plugin.
func annotatePodSecurity(a *Attributes, key, value string) {
	a.annotate(psapi.AuditAnnotationPrefix+key, value)
}

// exempt reports whether the write is exempt by its namespace or its user.
func (p *podSecurity) exempt(a *Attributes) bool {
	switch {
	case a.Namespace != "" && slices.Contains(p.config.Exemptions.Namespaces, a.Namespace):
		annotatePodSecurity(a, psapi.ExemptionReasonAnnotationKey, "namespace")
	case a.User.Username != "" && slices.Contains(p.config.Exemptions.Usernames, a.User.Username):
		annotatePodSecurity(a, psapi.ExemptionReasonAnnotationKey, "user")
	default:
		return false
	}
	return true
}

func (p *podSecurity) exemptClass(name *string) bool {
	return name != nil && *name != "" && slices.Contains(p.config.Exemptions.RuntimeClasses, *name)
}

func (p *podSecurity) validatePod(ctx context.Context, a *Attributes) error {
	if p.exempt(a) {
		return nil
	}
	namespace, err := get[*corev1.Namespace](ctx, p.client, namespaces, "", a.Namespace)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to lookup namespace %q", a.Namespace))
	}
	wanted, errs := psapi.PolicyToEvaluate(namespace.Labels, p.config.policy)
	if len(errs) == 0 && wanted.FullyPrivileged() {
		annotatePodSecurity(a, psapi.EnforcedPolicyAnnotationKey, "privileged:latest")
		return nil
	}
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return apierrors.NewBadRequest("failed to decode pod")
	}
	if a.Operation == Update {
		old, err := oldOf[*corev1.Pod](a)
		if err != nil {
			return apierrors.NewBadRequest("failed to decode old pod")
		}
		if !newImages(pod, old) {
			return nil
		}
	}
	return p.evaluate(a, podCheck{wanted, errs.ToAggregate(), &pod.ObjectMeta, &pod.Spec, true})
}

// newImages reports whether an update adds a container or an image. Nothing else that the standards check can be changed.
func newImages(pod, old *corev1.Pod) bool {
	if len(pod.Spec.Containers) != len(old.Spec.Containers) || len(pod.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return true
	}
	type place struct {
		kind container.Kind
		name string
	}
	had := map[place]string{}
	for kind, c := range container.All(&old.Spec) {
		had[place{kind, c.Name}] = c.Image
	}
	for kind, c := range container.All(&pod.Spec) {
		if image, ok := had[place{kind, c.Name}]; !ok || image != c.Image {
			return true
		}
	}
	return false
}

// validatePodController only warns; pods are rejected when they are created.
func (p *podSecurity) validatePodController(ctx context.Context, a *Attributes) error {
	if p.exempt(a) {
		return nil
	}
	namespace, err := get[*corev1.Namespace](ctx, p.client, namespaces, "", a.Namespace)
	if err != nil {
		annotatePodSecurity(a, "error", fmt.Sprintf("failed to lookup namespace %q: %v", a.Namespace, err))
		return nil
	}
	wanted, errs := psapi.PolicyToEvaluate(namespace.Labels, p.config.policy)
	if len(errs) == 0 && wanted.Warn.Level == psapi.LevelPrivileged && wanted.Audit.Level == psapi.LevelPrivileged {
		return nil
	}
	metadata, spec, err := template(a.Object)
	if err != nil {
		annotatePodSecurity(a, "error", fmt.Sprintf("failed to extract pod template: %v", err))
		return nil
	}
	if spec == nil {
		return nil
	}
	return p.evaluate(a, podCheck{wanted, errs.ToAggregate(), metadata, spec, false})
}

// podCheck is a pod or pod template to be checked.
type podCheck struct {
	policy   psapi.Policy
	labelErr error // of parsing the policy
	metadata *metav1.ObjectMeta
	spec     *corev1.PodSpec
	enforce  bool
}

// evaluate runs the checks of each mode. Modes with the same level and version share the result.
func (p *podSecurity) evaluate(a *Attributes, check podCheck) error {
	if p.exemptClass(check.spec.RuntimeClassName) {
		annotatePodSecurity(a, psapi.ExemptionReasonAnnotationKey, "runtimeClass")
		return nil
	}
	if check.labelErr != nil {
		annotatePodSecurity(a, "error", fmt.Sprintf("Failed to parse policy: %v", check.labelErr))
	}
	results := map[psapi.LevelVersion]policy.AggregateCheckResult{}
	evaluateLevel := func(level psapi.LevelVersion) policy.AggregateCheckResult {
		result, ok := results[level]
		if !ok {
			result = policy.AggregateCheckResults(p.evaluator.EvaluatePod(level, check.metadata, check.spec))
			results[level] = result
		}
		return result
	}
	var violation error
	if check.enforce {
		annotatePodSecurity(a, psapi.EnforcedPolicyAnnotationKey, check.policy.Enforce.String())
		if result := evaluateLevel(check.policy.Enforce); !result.Allowed {
			violation = apierrors.NewForbidden(a.Resource.GroupResource(), a.Name,
				fmt.Errorf("violates PodSecurity %q: %s", check.policy.Enforce.String(), result.ForbiddenDetail()))
		}
	}
	if result := evaluateLevel(check.policy.Audit); !result.Allowed {
		annotatePodSecurity(a, psapi.AuditViolationsAnnotationKey, fmt.Sprintf("would violate PodSecurity %q: %s", check.policy.Audit.String(), result.ForbiddenDetail()))
	}
	if violation != nil {
		return violation
	}
	if result := evaluateLevel(check.policy.Warn); !result.Allowed {
		a.warn(fmt.Sprintf("would violate PodSecurity %q: %s", check.policy.Warn.String(), result.ForbiddenDetail()))
	}
	return nil
}

// validateNamespace rejects invalid labels. When the enforced level is raised, it warns of the pods that violate it.
func (p *podSecurity) validateNamespace(ctx context.Context, a *Attributes) error {
	namespace, err := objectOf[*corev1.Namespace](a)
	if err != nil {
		return apierrors.NewBadRequest("failed to decode namespace")
	}
	wanted, errs := psapi.PolicyToEvaluate(namespace.Labels, p.config.policy)
	if a.Operation == Create {
		if len(errs) > 0 {
			return invalidLabels(a, errs)
		}
		p.warnExempt(a, namespace, wanted)
		return nil
	}
	old, err := oldOf[*corev1.Namespace](a)
	if err != nil {
		return apierrors.NewBadRequest("failed to decode  old namespace")
	}
	before, oldErrs := psapi.PolicyToEvaluate(old.Labels, p.config.policy)
	if len(errs) > 0 && (len(oldErrs) == 0 || !reflect.DeepEqual(errs, oldErrs)) {
		return invalidLabels(a, errs)
	}
	relaxed := wanted.Enforce.Version == before.Enforce.Version && psapi.CompareLevels(wanted.Enforce.Level, before.Enforce.Level) < 1
	if wanted.Enforce == before.Enforce || wanted.Enforce.Level == psapi.LevelPrivileged || relaxed || p.warnExempt(a, namespace, wanted) {
		return nil
	}
	for _, text := range p.violations(ctx, namespace.Name, wanted.Enforce) {
		a.warn(text)
	}
	return nil
}

func invalidLabels(a *Attributes, errs field.ErrorList) error {
	err := kind.NewInvalid(a.Kind.GroupKind(), a.Name, errs)
	err.ErrStatus.Code = http.StatusUnprocessableEntity
	return err
}

// warnExempt warns that the labels of an exempt namespace are ignored. It reports whether the namespace is exempt.
func (p *podSecurity) warnExempt(a *Attributes, namespace *corev1.Namespace, wanted psapi.Policy) bool {
	if !slices.Contains(p.config.Exemptions.Namespaces, a.Namespace) {
		return false
	}
	if wanted.FullyPrivileged() || wanted.Equivalent(&p.config.policy) {
		return true
	}
	var modes []string
	for _, mode := range []struct {
		name           string
		level, version string
		wanted         psapi.LevelVersion
	}{
		{"enforce", psapi.EnforceLevelLabel, psapi.EnforceVersionLabel, wanted.Enforce},
		{"audit", psapi.AuditLevelLabel, psapi.AuditVersionLabel, wanted.Audit},
		{"warn", psapi.WarnLevelLabel, psapi.WarnVersionLabel, wanted.Warn},
	} {
		_, hasLevel := namespace.Labels[mode.level]
		_, hasVersion := namespace.Labels[mode.version]
		if mode.wanted.Level != psapi.LevelPrivileged && (hasLevel || hasVersion) {
			modes = append(modes, mode.name+"="+mode.wanted.String())
		}
	}
	a.warn(fmt.Sprintf("namespace %q is exempt from Pod Security, and the policy (%s) will be ignored", namespace.Name, strings.Join(modes, ", ")))
	return true
}

// The limits of checking the pods of a namespace.
const (
	maxPodsChecked   = 3000
	maxPodsCheckTime = time.Second
)

// violations describes the pods of a namespace that violate a level, as warnings.
func (p *podSecurity) violations(ctx context.Context, namespace string, level psapi.LevelVersion) (warnings []string) {
	limit := maxPodsCheckTime
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	until := time.Now().Add(limit)
	all, err := list[*corev1.Pod](ctx, p.client, pods, namespace)
	if err != nil {
		return []string{"failed to list pods while checking new PodSecurity enforce level"}
	}
	order := p.prioritize(all)
	total := len(order)
	order = order[:min(total, maxPodsChecked)]
	type group struct {
		first string
		count int
	}
	groups := map[string]*group{}
	checked := 0
	for _, pod := range order {
		result := policy.AggregateCheckResults(p.evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec))
		checked++
		if !result.Allowed {
			g := groups[result.ForbiddenReason()]
			if g == nil {
				g = &group{first: pod.Name}
				groups[result.ForbiddenReason()] = g
			}
			g.first = min(g.first, pod.Name)
			g.count++
		}
		if ctx.Err() != nil || time.Now().After(until) {
			break
		}
	}
	if checked < total {
		warnings = append(warnings, fmt.Sprintf("new PodSecurity enforce level only checked against the first %d of %d existing pods", checked, total))
	}
	if len(groups) > 0 {
		warnings = append(warnings, fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q", namespace, level.String()))
	}
	var texts []string
	for reason, g := range groups {
		others := ""
		if g.count == 2 {
			others = " (and 1 other pod)"
		} else if g.count > 2 {
			others = fmt.Sprintf(" (and %d other pods)", g.count-1)
		}
		texts = append(texts, g.first+others+": "+reason)
	}
	sort.Strings(texts)
	return append(warnings, texts...)
}

// prioritize sorts one pod of each controller before its others, which are alike, and drops exempt pods.
func (p *podSecurity) prioritize(all []*corev1.Pod) (order []*corev1.Pod) {
	var others []*corev1.Pod
	seen := map[types.UID]bool{}
	for _, pod := range all {
		if p.exemptClass(pod.Spec.RuntimeClassName) {
			continue
		}
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
			if seen[owner.UID] {
				others = append(others, pod)
				continue
			}
			seen[owner.UID] = true
		}
		order = append(order, pod)
	}
	return append(order, others...)
}
