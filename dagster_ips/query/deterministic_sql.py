"""The parts of SQL that are known to give the same result for the same rows. What isn't named here is refused."""

from __future__ import annotations

_SYNTAX = """
    Add Alias Between BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor Boolean Bracket
    CTE Cluster Column Cube DPipe DataType DataTypeParam Distinct Distribute Div Dot EQ Escape Except Filter From GT
    GTE Group GroupingSets Having HexString Hint IgnoreNulls ILike Identifier In IntDiv Intersect Interval
    IntervalSpan Is Join LT LTE Lambda Lateral Like Limit Literal Mod Mul NEQ Neg Not Null NullSafeEQ NullSafeNEQ
    Offset Order Ordered Paren Qualify RawString RespectNulls Rollup Select Sort Star Sub Subquery Table TableAlias
    Tuple Union Values Var Where Window WindowSpec With WithinGroup
"""
_SCALAR = """
    Abs Acos Acosh AddMonths And Array ArrayAll ArrayAny ArrayAppend ArrayCompact ArrayConcat ArrayContains
    ArrayDistinct ArrayExcept ArrayFilter ArrayInsert ArrayIntersect ArrayMax ArrayMin ArrayOverlaps ArrayPosition
    ArrayPrepend ArrayRemove ArraySize ArraySlice ArraySort ArrayToString Ascii Asin Asinh Atan Atan2 Atanh
    Base64Encode BitLength BitwiseCount Case Cast Cbrt Ceil Chr Coalesce Concat ConcatWs Contains ConvertTimezone
    Cos Cosh Cot Csc Date DateAdd DateDiff DateFromParts DateFromUnixDate DateStrToDate DateSub DateToDateStr
    DateTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Dayname Decode DecodeCase Degrees Elt Encode EndsWith
    EqualNull Exists Exp Explode Extract Factorial Flatten Floor FromBase64 FromJson Getbit Greatest Grouping
    GroupingId Hex Hour If Initcap IsInf IsNan JSONExtract JSONExtractScalar JSONObject LastDay Least Left Length
    Levenshtein Ln Log Lower MD5 MD5Digest MakeInterval Map MapFromEntries MapKeys MapSize Minute Month Monthname
    MonthsBetween Nanvl NextDay Nullif NumberToStr Nvl2 Or Overlay Pad ParseUrl Pi Posexplode Pow Quarter Radians
    RegexpCount RegexpExtract RegexpExtractAll RegexpILike RegexpInstr RegexpLike RegexpReplace RegexpSplit
    RegexpSubstr Repeat Replace Reverse Right Rint Round SHA SHA2 SHA2Digest SafeDivide Sec Second Sign Sin Sinh
    Soundex Space Split SplitPart Sqrt StarMap StartsWith StrPosition StrToDate StrToMap StrToTime StrToUnix Struct
    StructExtract Substring SubstringIndex Tan Tanh TimeStrToDate TimeStrToTime TimeStrToUnix TimeToStr TimeToUnix
    Timestamp TimestampAdd TimestampDiff TimestampFromParts TimestampTrunc ToChar ToNumber Transform Translate Trim
    Trunc TryCast TsOrDiToDi TsOrDsAdd TsOrDsDiff TsOrDsToDate TsOrDsToDateStr TsOrDsToTimestamp Typeof Unhex
    Unicode UnixDate UnixMicros UnixMillis UnixSeconds UnixToStr UnixToTime UnixToTimeStr Upper VarMap Week
    WeekOfYear WidthBucket Xor Year YearOfWeek
"""
_AGGREGATES = """
    ApproxDistinct Avg BitwiseAndAgg BitwiseOrAgg BitwiseXorAgg Corr Count CountIf CovarPop CovarSamp Kurtosis
    LogicalAnd LogicalOr Max Median Min Quantile Skewness Stddev StddevPop StddevSamp Sum Variance VariancePop
"""
_WINDOWED = """
    AnyValue CumeDist DenseRank First FirstValue Lag Last LastValue Lead NthValue Ntile PercentRank Rank RowNumber
"""
_BY_NAME = """
    crc32 date_part expm1 find_in_set format_number format_string hypot isnotnull isnull json_array_length log10
    log1p log2 ltrim make_date make_timestamp negative nullifzero pmod positive printf rpad rtrim sequence shiftleft
    shiftright shiftrightunsigned to_timestamp_ltz to_timestamp_ntz try_add try_multiply try_subtract try_to_number
    try_to_timestamp url_decode url_encode zeroifnull
"""

SYNTAX = frozenset(_SYNTAX.split())
SCALAR = frozenset(_SCALAR.split())
AGGREGATES = frozenset(_AGGREGATES.split())
WINDOWED = frozenset(_WINDOWED.split())
"""Functions whose value depends on the order of rows: known over a window that has an ORDER BY."""
BY_NAME = frozenset(_BY_NAME.split())
"""Spark's functions that sqlglot has no class for. Aggregates among them aren't: they'd be taken for scalar ones."""
OF_THE_MOMENT = frozenset(("now", "today", "tomorrow", "yesterday"))
"""Texts that are another date or time on another day."""
