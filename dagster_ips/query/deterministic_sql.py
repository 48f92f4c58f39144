"""The parts of SQL that are known to give the same result for the same rows. What isn't named here is refused."""

from __future__ import annotations

_SYNTAX = """
    Add Alias Aliases Between BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor Boolean
    Bracket CTE Cluster Column ColumnDef Cube DPipe DataType DataTypeParam Distinct Distribute Div Dot EQ Escape
    Except Filter From GT GTE Group GroupingSets Having HexString Hint ILike Identifier IgnoreNulls In IntDiv
    Intersect Interval IntervalSpan Is Join LT LTE Lambda Lateral Like Limit Literal Mod Mul NEQ Neg Not Null
    NullSafeEQ NullSafeNEQ Offset Order Ordered Paren PropertyEQ RawString RespectNulls Rollup Select Sort
    Star Sub Subquery Table TableAlias Tuple Union Values Var Where Window WindowSpec With WithinGroup
"""
_SCALAR = """
    Abs Acos Acosh AddMonths And Array ArrayAll ArrayAny ArrayAppend ArrayCompact ArrayConcat ArrayContains
    ArrayDistinct ArrayExcept ArrayFilter ArrayInsert ArrayIntersect ArrayMax ArrayMin ArrayOverlaps ArrayPosition
    ArrayPrepend ArrayRemove ArraySize ArraySlice ArraySort ArrayToString ArraysZip Ascii Asin Asinh AtTimeZone Atan
    Atan2 Atanh Base64Encode BitLength BitwiseCount Case Cast Cbrt Ceil Chr Coalesce Concat ConcatWs Contains
    ConvertTimezone Cos Cosh Cot Csc Date DateAdd DateDiff DateFromParts DateFromUnixDate DateStrToDate DateSub
    DateToDateStr DateTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Dayname Decode DecodeCase Degrees Elt
    Encode EndsWith EqualNull Exists Exp Explode Extract Factorial Flatten Floor Format FromBase64 FromJson
    FromTimeZone GenerateSeries Getbit Greatest Grouping GroupingId Hex Hour If Initcap IsInf IsNan JSONExtract
    JSONExtractScalar JSONFormat JSONKeys JSONObject LastDay Least Left Length Levenshtein Ln Log Lower MD5 MD5Digest
    MakeInterval Map MapContainsKey MapFromEntries MapKeys MapSize Minute Month Monthname MonthsBetween Nanvl Negative
    NextDay Nullif NumberToStr Nvl2 Or Overlay Pad ParseJSON ParseUrl Pi Posexplode Pow Quarter Radians Reduce
    RegexpCount RegexpExtract RegexpExtractAll RegexpILike RegexpInstr RegexpLike RegexpReplace RegexpSplit
    RegexpSubstr Repeat Replace Reverse Right Rint Round SHA SHA2 SHA2Digest SafeAdd SafeDivide SafeMultiply
    SafeSubtract Sec Second Sign Sin Sinh Soundex Space Split SplitPart Sqrt StarMap StartsWith StrPosition StrToDate
    StrToMap StrToTime StrToUnix Struct StructExtract Substring SubstringIndex Tan Tanh TimeStrToDate TimeStrToTime
    TimeStrToUnix TimeToStr TimeToUnix Timestamp TimestampAdd TimestampDiff TimestampFromParts TimestampTrunc ToBase64
    ToBinary ToChar ToNumber Transform Translate Trim Trunc TryCast TsOrDiToDi TsOrDsAdd TsOrDsDiff TsOrDsToDate
    TsOrDsToDateStr TsOrDsToTimestamp Typeof Unhex Unicode UnixDate UnixMicros UnixMillis UnixSeconds UnixToStr
    UnixToTime UnixToTimeStr Upper VarMap Week WeekOfYear WidthBucket Xor Year YearOfWeek PosexplodeOuter
    _ExplodeOuter
"""
_AGGREGATES = """
    AnonymousAggFunc ApproxDistinct ArgMax ArgMin Avg BitwiseAndAgg BitwiseOrAgg BitwiseXorAgg Corr Count CountIf
    CovarPop CovarSamp Kurtosis LogicalAnd LogicalOr Max Median Min PercentileCont PercentileDisc Quantile RegrAvgx
    RegrAvgy RegrCount RegrIntercept RegrR2 RegrSlope RegrSxx RegrSxy RegrSyy Skewness Stddev StddevPop StddevSamp Sum
    Variance VariancePop
"""
_WINDOWED = """
    AnyValue CumeDist DenseRank First FirstValue Lag Last LastValue Lead NthValue Ntile PercentRank Rank RowNumber
"""
_BY_NAME = """
    array_repeat array_union arrays_overlap bin bround btrim cardinality conv crc32 date_part datepart e expm1
    find_in_set forall format_number format_string from_csv get hash hypot is_variant_null isnotnull isnull
    json_array_length log10 log1p log2 ltrim luhn_check make_date make_dt_interval make_timestamp make_timestamp_ltz
    make_timestamp_ntz make_ym_interval map_concat map_entries map_filter map_values map_zip_with mask negative
    nullifzero octet_length pmod positive printf quote range regexp rpad rtrim schema_of_variant sequence shiftleft
    shiftright shiftrightunsigned timestamp_micros timestamp_millis timestamp_seconds to_csv to_timestamp_ltz
    to_timestamp_ntz to_varchar to_variant_object transform_keys transform_values try_add try_mod try_multiply
    try_parse_json try_subtract try_to_date try_to_number try_to_timestamp try_url_decode try_variant_get url_decode
    url_encode variant_get weekday xxhash64 zeroifnull zip_with
"""

SYNTAX = frozenset(_SYNTAX.split())
SCALAR = frozenset(_SCALAR.split())
AGGREGATES = frozenset(_AGGREGATES.split())
WINDOWED = frozenset(_WINDOWED.split())
"""Functions whose value depends on the order of rows: accepted over a window that has an ORDER BY."""
BY_NAME = frozenset(_BY_NAME.split())
"""Scalar Spark functions that sqlglot has no class for. Aggregates would be mistaken for scalars, so none is listed."""
COLLECTED = frozenset(("ArrayAgg", "ArrayUniqueAgg"))
"""Aggregates whose array has an arbitrary order: accepted where the array is sorted at once or only counted."""
