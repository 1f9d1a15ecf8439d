package flowcontrol

import (
	"fmt"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

// PriorityLevelConfiguration gives the flows of one priority level their share of the server's concurrency.
var PriorityLevelConfiguration = kind.Of(kind.Definition[*flowcontrolv1.PriorityLevelConfiguration]{
	GVK: flowcontrolv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration"), Plural: "prioritylevelconfigurations",
	List:       &flowcontrolv1.PriorityLevelConfigurationList{},
	Default:    defaultPriorityLevel,
	Validate:   validatePriorityLevel,
	CopyStatus: func(to, from *flowcontrolv1.PriorityLevelConfiguration) { to.Status = from.Status },
	ValidateStatus: func(_ *kind.Request, level, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
		return validatePriorityLevelStatus(level)
	},
	StatusOnly: true,
	SpecChanged: func(level, old *flowcontrolv1.PriorityLevelConfiguration) bool {
		return !equality.Semantic.DeepEqual(level.Spec, old.Spec)
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Type", "string", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
		kind.Column("NominalConcurrencyShares", "string", flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
		kind.Column("Queues", "string", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["queues"]),
		kind.Column("HandSize", "string", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["handSize"]),
		kind.Column("QueueLengthLimit", "string", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["queueLengthLimit"]),
		kind.AgeColumn(),
	},
	Row: priorityLevelRow,
})

func priorityLevelRow(level *flowcontrolv1.PriorityLevelConfiguration, now time.Time) []any {
	var shares, queues, hand, length any = "<none>", "<none>", "<none>", "<none>"
	if limited := level.Spec.Limited; limited != nil {
		shares = ptr.Deref(limited.NominalConcurrencyShares, 0)
		if queuing := limited.LimitResponse.Queuing; queuing != nil {
			queues, hand, length = queuing.Queues, queuing.HandSize, queuing.QueueLengthLimit
		}
	}
	return []any{level.Name, string(level.Spec.Type), shares, queues, hand, length, kind.Age(level.CreationTimestamp, now)}
}

func defaultPriorityLevel(level *flowcontrolv1.PriorityLevelConfiguration) {
	if limited := level.Spec.Limited; limited != nil {
		kind.SetDefault(&limited.NominalConcurrencyShares, 30)
		kind.SetDefault(&limited.LendablePercent, 0)
		if queuing := limited.LimitResponse.Queuing; queuing != nil {
			if queuing.HandSize == 0 {
				queuing.HandSize = 8
			}
			if queuing.Queues == 0 {
				queuing.Queues = 64
			}
			if queuing.QueueLengthLimit == 0 {
				queuing.QueueLengthLimit = 50
			}
		}
	}
	if exempt := level.Spec.Exempt; exempt != nil {
		kind.SetDefault(&exempt.NominalConcurrencyShares, 0)
		kind.SetDefault(&exempt.LendablePercent, 0)
	}
}

func validatePriorityLevel(_ *kind.Request, level, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	var errs field.ErrorList
	if _, ok := level.Annotations[flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey]; ok {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "annotations"),
			fmt.Sprintf("annotation '%s' is forbidden", flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey)))
	}
	path := field.NewPath("spec")
	errs = append(errs, validatePriorityLevelSpec(level, path)...)
	errs = append(errs, validateFixed(level, path)...)
	return append(errs, validatePriorityLevelStatus(level)...)
}

// validateFixed refuses changes of the mandatory levels, except for the shares of the exempt level.
func validateFixed(level *flowcontrolv1.PriorityLevelConfiguration, path *field.Path) field.ErrorList {
	for _, fixed := range bootstrap.MandatoryPriorityLevelConfigurations {
		if fixed.Name != level.Name {
			continue
		}
		spec, rule := level.Spec, "spec of '%s' must equal the fixed value"
		if level.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
			spec.Exempt, rule = fixed.Spec.Exempt, "spec of '%s' except the 'spec.exempt' field must equal the fixed value"
		}
		if !equality.Semantic.DeepEqual(spec, fixed.Spec) {
			return field.ErrorList{field.Invalid(path, level.Spec, fmt.Sprintf(rule, level.Name))}
		}
	}
	return nil
}

func validatePriorityLevelStatus(level *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	types := make([]string, len(level.Status.Conditions))
	for i, condition := range level.Status.Conditions {
		types[i] = string(condition.Type)
	}
	return validateConditionTypes(types)
}

func validatePriorityLevelSpec(level *flowcontrolv1.PriorityLevelConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec := &level.Spec
	exempt, limited := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt, spec.Type == flowcontrolv1.PriorityLevelEnablementLimited
	if (level.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt) != exempt {
		errs = append(errs, field.Invalid(path.Child("type"), spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'"))
	}
	switch {
	case spec.Type == "":
		errs = append(errs, field.Required(path.Child("type"), ""))
	case !exempt && !limited:
		errs = append(errs, field.NotSupported(path.Child("type"), spec.Type,
			[]flowcontrolv1.PriorityLevelEnablement{flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited}))
	}
	switch {
	case spec.Limited != nil && !limited:
		errs = append(errs, field.Forbidden(path.Child("limited"), ""))
		errs = append(errs, validateResponse(&spec.Limited.LimitResponse, path.Child("limited", "limitResponse"))...)
	case spec.Limited == nil && limited:
		errs = append(errs, field.Required(path.Child("limited"), ""))
	case limited:
		errs = append(errs, validateLimited(spec.Limited, path.Child("limited"))...)
	}
	switch {
	case spec.Exempt != nil && !exempt:
		errs = append(errs, field.Forbidden(path.Child("exempt"), ""))
	case spec.Exempt != nil:
		errs = append(errs, validateShares(spec.Exempt.NominalConcurrencyShares, spec.Exempt.LendablePercent, path.Child("exempt"))...)
	}
	return errs
}

func validateShares(shares, lendable *int32, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if shares != nil && *shares < 0 {
		errs = append(errs, field.Invalid(path.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer"))
	}
	if lendable != nil && (*lendable < 0 || *lendable > 100) {
		errs = append(errs, field.Invalid(path.Child("lendablePercent"), *lendable, "must be between 0 and 100, inclusive"))
	}
	return errs
}

func validateLimited(limited *flowcontrolv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := validateShares(limited.NominalConcurrencyShares, limited.LendablePercent, path)
	if limit := limited.BorrowingLimitPercent; limit != nil && *limit < 0 {
		errs = append(errs, field.Invalid(path.Child("borrowingLimitPercent"), *limit, "if specified, must be a non-negative integer"))
	}
	response, path := &limited.LimitResponse, path.Child("limitResponse")
	errs = append(errs, validateResponse(response, path)...)
	switch response.Type {
	case "", flowcontrolv1.LimitResponseTypeReject:
	case flowcontrolv1.LimitResponseTypeQueue:
		if response.Queuing != nil {
			errs = append(errs, validateQueuing(response.Queuing, path.Child("queuing"))...)
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), response.Type,
			[]flowcontrolv1.LimitResponseType{flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject}))
	}
	return errs
}

// validateResponse: queuing is set if and only if the type is Queue.
func validateResponse(response *flowcontrolv1.LimitResponse, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if response.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), ""))
	}
	switch queue := response.Type == flowcontrolv1.LimitResponseTypeQueue; {
	case response.Queuing != nil && !queue:
		errs = append(errs, field.Forbidden(path.Child("queuing"), ""))
	case response.Queuing == nil && queue:
		errs = append(errs, field.Required(path.Child("queuing"), ""))
	}
	return errs
}

const maxQueues = 10 * 1000 * 1000

func validateQueuing(queuing *flowcontrolv1.QueuingConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if queuing.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(path.Child("queueLengthLimit"), queuing.QueueLengthLimit, "must be positive"))
	}
	if queuing.Queues <= 0 {
		errs = append(errs, field.Invalid(path.Child("queues"), queuing.Queues, "must be positive"))
	} else if queuing.Queues > maxQueues {
		errs = append(errs, field.Invalid(path.Child("queues"), queuing.Queues, fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	hand := path.Child("handSize")
	if queuing.HandSize <= 0 {
		errs = append(errs, field.Invalid(hand, queuing.HandSize, "must be positive"))
	} else if queuing.HandSize > queuing.Queues {
		errs = append(errs, field.Invalid(hand, queuing.HandSize, fmt.Sprintf("should not be greater than queues (%d)", queuing.Queues)))
	} else if shufflesharding.RequiredEntropyBits(int(queuing.Queues), int(queuing.HandSize)) > shufflesharding.MaxHashBits {
		errs = append(errs, field.Invalid(hand, queuing.HandSize, fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d",
			queuing.Queues, queuing.HandSize, shufflesharding.MaxHashBits)))
	}
	return errs
}
