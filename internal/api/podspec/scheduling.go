package podspec

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	required  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferred = "preferredDuringSchedulingIgnoredDuringExecution"
)

func (val *validator) affinity(path *field.Path) {
	affinity := val.spec.Affinity
	if affinity == nil {
		return
	}
	if node := affinity.NodeAffinity; node != nil {
		path := path.Child("nodeAffinity")
		if node.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			val.nodeSelector(node.RequiredDuringSchedulingIgnoredDuringExecution, path.Child(required))
		}
		for i, term := range node.PreferredDuringSchedulingIgnoredDuringExecution {
			path := path.Child(preferred).Index(i)
			val.weight(term.Weight, path.Child("weight"))
			val.nodeSelectorTerm(&term.Preference, true, path.Child("preference"))
		}
	}
	if pods := affinity.PodAffinity; pods != nil {
		val.podAffinity(pods.RequiredDuringSchedulingIgnoredDuringExecution, pods.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))
	}
	if pods := affinity.PodAntiAffinity; pods != nil {
		val.podAffinity(pods.RequiredDuringSchedulingIgnoredDuringExecution, pods.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))
	}
}

func (val *validator) weight(weight int32, path *field.Path) {
	if weight <= 0 || weight > 100 {
		val.invalid(path, weight, "must be in the range 1-100")
	}
}

// ValidateNodeSelector validates a node selector of any object. allowInvalidValues tolerates invalid label values.
func ValidateNodeSelector(selector *corev1.NodeSelector, allowInvalidValues bool, path *field.Path) field.ErrorList {
	val := &validator{allow: allowances{nodeAffinityValues: allowInvalidValues}}
	val.nodeSelector(selector, path)
	return val.errs
}

func (val *validator) nodeSelector(selector *corev1.NodeSelector, path *field.Path) {
	path = path.Child("nodeSelectorTerms")
	if len(selector.NodeSelectorTerms) == 0 {
		val.required(path, "must have at least one node selector term")
	}
	for i := range selector.NodeSelectorTerms {
		val.nodeSelectorTerm(&selector.NodeSelectorTerms[i], val.allow.nodeAffinityValues, path.Index(i))
	}
}

func (val *validator) nodeSelectorTerm(term *corev1.NodeSelectorTerm, allowInvalidValues bool, path *field.Path) {
	for i, requirement := range term.MatchExpressions {
		val.nodeLabel(requirement, allowInvalidValues, path.Child("matchExpressions").Index(i))
	}
	for i, requirement := range term.MatchFields {
		val.nodeField(requirement, path.Child("matchFields").Index(i))
	}
}

func (val *validator) nodeLabel(r corev1.NodeSelectorRequirement, allowInvalidValues bool, path *field.Path) {
	values := path.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			val.required(values, "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			val.forbidden(values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			val.required(values, "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		val.invalid(path.Child("operator"), r.Operator, "not a valid selector operator")
	}
	val.labelName(path.Child("key"), r.Key)
	if !allowInvalidValues {
		for i, value := range r.Values {
			val.invalidEach(values.Index(i), value, utilvalidation.IsValidLabelValue(value))
		}
	}
}

// nodeField validates a selection by a field of the node; metadata.name is the only one.
func (val *validator) nodeField(r corev1.NodeSelectorRequirement, path *field.Path) {
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) != 1 {
			val.required(path.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
	default:
		val.invalid(path.Child("operator"), r.Operator, "not a valid selector operator")
	}
	if r.Key != metav1.ObjectNameField {
		val.invalid(path.Child("key"), r.Key, "not a valid field selector key")
		return
	}
	for i, value := range r.Values {
		val.subdomain(path.Child("values").Index(i), value)
	}
}

func (val *validator) podAffinity(requiredTerms []corev1.PodAffinityTerm, preferredTerms []corev1.WeightedPodAffinityTerm, path *field.Path) {
	for i := range requiredTerms {
		val.podAffinityTerm(&requiredTerms[i], path.Child(required).Index(i))
	}
	for i := range preferredTerms {
		path := path.Child(preferred).Index(i)
		val.weight(preferredTerms[i].Weight, path.Child("weight"))
		val.podAffinityTerm(&preferredTerms[i].PodAffinityTerm, path.Child("podAffinityTerm"))
	}
}

func (val *validator) podAffinityTerm(term *corev1.PodAffinityTerm, path *field.Path) {
	val.affinitySelectors(term, val.allow.affinityValues, path)
	for _, name := range term.Namespaces {
		val.invalidEach(path.Child("namespace"), name, validation.ValidateNamespaceName(name, false))
	}
	val.labelKeys(term.MatchLabelKeys, term.MismatchLabelKeys, term.LabelSelector, path)
	if term.TopologyKey == "" {
		val.required(path.Child("topologyKey"), "can not be empty")
	}
	val.labelName(path.Child("topologyKey"), term.TopologyKey)
}

func (val *validator) affinitySelectors(term *corev1.PodAffinityTerm, allowInvalidValues bool, path *field.Path) {
	val.selector(path.Child("labelSelector"), term.LabelSelector, allowInvalidValues)
	val.selector(path.Child("namespaceSelector"), term.NamespaceSelector, allowInvalidValues)
}

// labelKeys validates keys whose values are taken from the pod's own labels and merged into the selector.
func (val *validator) labelKeys(match, mismatch []string, selector *metav1.LabelSelector, path *field.Path) {
	for _, list := range []struct {
		name string
		keys []string
	}{{"matchLabelKeys", match}, {"mismatchLabelKeys", mismatch}} {
		path := path.Child(list.name)
		if len(list.keys) > 0 && selector == nil {
			val.forbidden(path, "must not be specified when labelSelector is not set")
			continue
		}
		for i, key := range list.keys {
			val.labelName(path.Index(i), key)
		}
	}
	if selector != nil {
		// A key may occur in the selector once: it was merged there when the pod was created.
		index := make(map[string]int, len(match))
		for i, key := range match {
			index[key] = i
		}
		used := sets.KeySet(selector.MatchLabels)
		for _, expression := range selector.MatchExpressions {
			if i, ok := index[expression.Key]; ok && used.Has(expression.Key) {
				val.invalid(path.Index(i), expression.Key, "exists in both matchLabelKeys and labelSelector")
			}
			used.Insert(expression.Key)
		}
	}
	others := sets.New(mismatch...)
	for i, key := range match {
		if others.Has(key) {
			val.invalid(path.Child("matchLabelKeys").Index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
}

// unmergedLabelKeys is the older validation: the selector must not contain the keys at all. It applies if the stored
// object violates the newer one.
func (val *validator) unmergedLabelKeys(keys []string, selector *metav1.LabelSelector, path *field.Path) {
	if len(keys) == 0 {
		return
	}
	used := sets.New[string]()
	if selector == nil {
		val.forbidden(path, "must not be specified when labelSelector is not set")
	} else {
		used = sets.KeySet(selector.MatchLabels)
		for _, expression := range selector.MatchExpressions {
			used.Insert(expression.Key)
		}
	}
	for i, key := range keys {
		val.labelName(path.Index(i), key)
		if used.Has(key) {
			val.invalid(path.Index(i), key, "exists in both matchLabelKeys and labelSelector")
		}
	}
}

func (val *validator) topologySpread(path *field.Path) {
	constraints := val.spec.TopologySpreadConstraints
	type pair struct {
		topologyKey       string
		whenUnsatisfiable corev1.UnsatisfiableConstraintAction
	}
	left := make(map[pair]int, len(constraints)) // how often each occurs from the current constraint on
	for _, c := range constraints {
		left[pair{c.TopologyKey, c.WhenUnsatisfiable}]++
	}
	for i := range constraints {
		c, path := &constraints[i], path.Index(i)
		val.positive(path.Child("maxSkew"), c.MaxSkew)
		if c.TopologyKey == "" {
			val.required(path.Child("topologyKey"), "can not be empty")
		}
		oneOf(val, path.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		current := pair{c.TopologyKey, c.WhenUnsatisfiable}
		if left[current]--; left[current] > 0 {
			val.duplicate(path.Child("{topologyKey, whenUnsatisfiable}"), fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable))
		}
		if c.MinDomains != nil {
			val.positive(path.Child("minDomains"), *c.MinDomains)
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				val.invalid(path.Child("minDomains"), *c.MinDomains,
					fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule, c.WhenUnsatisfiable))
			}
		}
		optionalOneOf(val, path.Child("nodeAffinityPolicy"), c.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		optionalOneOf(val, path.Child("nodeTaintsPolicy"), c.NodeTaintsPolicy, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		if val.allow.spreadLabelKeys {
			val.unmergedLabelKeys(c.MatchLabelKeys, c.LabelSelector, path.Child("matchLabelKeys"))
		} else {
			val.labelKeys(c.MatchLabelKeys, nil, c.LabelSelector, path)
		}
		if !val.allow.spreadSelector {
			val.selector(path.Child("labelSelector"), c.LabelSelector, false)
		}
	}
}

func (val *validator) positive(path *field.Path, value int32) {
	if value <= 0 {
		val.invalid(path, value, "must be greater than zero")
	}
}

// ValidateTolerations validates the tolerations of any object.
func ValidateTolerations(tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	val := &validator{}
	val.tolerations(tolerations, path)
	return val.errs
}

func (val *validator) tolerations(tolerations []corev1.Toleration, path *field.Path) {
	for i, t := range tolerations {
		path := path.Index(i)
		if t.Key != "" {
			val.labelName(path.Child("key"), t.Key)
		} else if t.Operator != corev1.TolerationOpExists {
			val.invalid(path.Child("operator"), t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			val.invalid(path.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
		}
		val.tolerationValue(&t, path)
		if t.Effect != "" {
			oneOf(val, path.Child("effect"), t.Effect,
				corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
		}
	}
}

func (val *validator) tolerationValue(t *corev1.Toleration, path *field.Path) {
	operator := path.Child("operator")
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		if texts := utilvalidation.IsValidLabelValue(t.Value); len(texts) > 0 {
			val.invalid(operator, t.Value, strings.Join(texts, ";"))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			val.invalid(operator, t.Value, "value must be empty when `operator` is 'Exists'")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		if !val.allow.comparingTolerations {
			val.add(field.NotSupported(operator, t.Operator, []corev1.TolerationOperator{
				corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt}))
			return
		}
		val.invalidEach(path.Child("value"), t.Value, content.IsDecimalInteger(t.Value))
		if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
			val.invalid(path.Child("value"), t.Value, err.Error())
		}
	default:
		oneOf(val, operator, t.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists)
	}
}

func (val *validator) schedulingGates(path *field.Path) {
	seen := sets.New[string]()
	for i, gate := range val.spec.SchedulingGates {
		val.qualifiedName(path.Index(i), gate.Name)
		if seen.Has(gate.Name) {
			val.duplicate(path.Index(i), gate.Name)
		}
		seen.Insert(gate.Name)
	}
}
